"""MiniMax-M3's text configuration, read from the published keys or from transformers' keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ascend_ops_core.checkpoint.config_reader import FIX_CONFIG, ConfigReader, as_number
from ascend_ops_core.errors import InvalidInputError

_PUBLISHED_BLOCKS = {
    "index_n_heads": "sparse_num_index_heads",
    "index_head_dim": "sparse_index_dim",
    "index_block_size": "sparse_block_size",
    "index_topk_blocks": "sparse_topk_blocks",
    "index_init_blocks": "sparse_init_block",
    "index_local_blocks": "sparse_local_block",
}
"""transformers' name of each figure of sparse attention, and the published one."""


@dataclass(frozen=True)
class BlockSelection:
    """How an indexer selects blocks of keys (published ``sparse_attention_config``).

    Attributes:
        heads: index heads, one for each key-value head.
        head_dim: width of an index head.
        block_size: tokens of a block, which is also a page of the caches.
        topk_blocks: blocks that a query keeps.
        init_blocks: first blocks that are kept before all others.
        local_blocks: last visible blocks, the query's own included, that come next.
    """

    heads: int
    head_dim: int
    block_size: int
    topk_blocks: int
    init_blocks: int
    local_blocks: int


@dataclass(frozen=True)
class MiniMaxM3Spec:
    """Everything that the text model's code reads from a config, validated.

    Attributes follow the published config's names. ``moe_layers`` and ``sparse_layers`` say of
    every main layer whether it has experts and whether its attention selects blocks; the two are
    independent. ``selection`` is None where no layer selects. ``num_mtp_layers`` drafts follow,
    which have both.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    dense_intermediate_size: int
    shared_intermediate_size: int
    num_hidden_layers: int
    num_mtp_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    rms_norm_eps: float
    max_position_embeddings: int
    num_local_experts: int
    num_experts_per_tok: int
    scoring_func: str
    routed_scaling_factor: float
    use_routing_bias: bool
    swiglu_alpha: float
    swiglu_beta: float
    swiglu_limit: float
    moe_layers: tuple[bool, ...]
    sparse_layers: tuple[bool, ...]
    selection: BlockSelection | None

    @property
    def n_routed_experts(self) -> int:
        """Experts of a layer; 0 where no layer has any."""
        drafts = self.num_mtp_layers > 0
        return self.num_local_experts if drafts or any(self.moe_layers) else 0

    def is_moe_layer(self, layer: int) -> bool:
        """Whether the layer has experts; drafts, behind the main layers, always do."""
        return layer >= self.num_hidden_layers or self.moe_layers[layer]

    def is_sparse_layer(self, layer: int) -> bool:
        """Whether the layer's attention selects blocks; that of drafts always does."""
        return layer >= self.num_hidden_layers or self.sparse_layers[layer]

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """Read a Hugging Face config object or a mapping, of the text model or of the whole one.

        Raises:
            InvalidInputError: a missing key, a value that is not served, or sizes that do not fit
                together.
        """
        outer = ConfigReader(config, "MiniMax-M3")
        read = ConfigReader(outer.get("text_config", config), "MiniMax-M3")
        _check_kind(read)
        layers = read.integer("num_hidden_layers", least=1)
        head_dim = read.integer("head_dim", least=2)
        sparse = _layers(read, layers, "layer_types", "minimax_m3_sparse", _frequencies(read))
        moe = _layers(read, layers, "mlp_layer_types", "sparse", read.get("moe_layer_freq"))
        drafts = read.integer("num_mtp_modules", 0)
        inter, shared_experts = (
            read.integer("intermediate_size", least=1),
            read.integer("n_shared_experts", 1),
        )
        spec = cls(
            vocab_size=read.integer("vocab_size", least=1),
            hidden_size=read.integer("hidden_size", least=1),
            intermediate_size=inter,
            dense_intermediate_size=read.integer(
                "dense_intermediate_size", 0 if moe is None or all(moe) else None
            ),
            shared_intermediate_size=read.integer(
                "shared_intermediate_size", inter * shared_experts
            ),
            num_hidden_layers=layers,
            num_mtp_layers=drafts,
            num_attention_heads=read.integer("num_attention_heads", least=1),
            num_key_value_heads=read.integer("num_key_value_heads", least=1),
            head_dim=head_dim,
            rotary_dim=_rotary_dim(read, head_dim),
            rope_theta=_rope_theta(read),
            rms_norm_eps=read.number("rms_norm_eps", 1e-6),
            max_position_embeddings=read.integer("max_position_embeddings", least=1),
            num_local_experts=read.integer("num_local_experts", 0),
            num_experts_per_tok=read.integer("num_experts_per_tok", 0),
            scoring_func=str(read.get("scoring_func", "sigmoid")),
            routed_scaling_factor=read.number("routed_scaling_factor", 1.0),
            use_routing_bias=bool(read.get("use_routing_bias", True)),
            swiglu_alpha=read.number("swiglu_alpha", 1.702),
            swiglu_beta=read.number("swiglu_beta", 1.0),
            swiglu_limit=read.number("swiglu_limit", 7.0),
            # Without a list transformers gives all layers experts and full attention.
            moe_layers=(True,) * layers if moe is None else moe,
            sparse_layers=(False,) * layers if sparse is None else sparse,
            selection=_selection(read) if drafts or any(sparse or ()) else None,
        )
        spec.check(shared_experts)
        return spec

    def check(self, shared_experts: int) -> None:
        """Refuse sizes that do not fit together.

        Raises:
            InvalidInputError: the first of them.
        """
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        if heads % kv_heads:
            raise InvalidInputError(
                f"num_key_value_heads={kv_heads}",
                f"it must divide num_attention_heads={heads}",
                FIX_CONFIG,
            )
        if self.swiglu_limit <= 0:
            raise InvalidInputError(
                f"swiglu_limit={self.swiglu_limit}", "it must be positive", FIX_CONFIG
            )
        if self.shared_intermediate_size != self.intermediate_size * shared_experts:
            raise InvalidInputError(
                f"shared_intermediate_size={self.shared_intermediate_size}",
                f"n_shared_experts={shared_experts} of intermediate_size="
                f"{self.intermediate_size} have {self.intermediate_size * shared_experts} channels",
                FIX_CONFIG,
            )
        experts, chosen = self.num_local_experts, self.num_experts_per_tok
        if self.n_routed_experts != experts or (experts and not 1 <= chosen <= experts):
            raise InvalidInputError(
                f"num_experts_per_tok={chosen} of num_local_experts={experts}",
                "a layer with experts has some, and a token visits 1 to all of them",
                FIX_CONFIG,
            )
        if any(self.moe_layers) and not experts:
            raise InvalidInputError(
                "num_local_experts=0", "moe_layer_freq names layers with experts", FIX_CONFIG
            )
        if self.selection is not None:
            self._check_selection(self.selection)

    def _check_selection(self, chosen: BlockSelection) -> None:
        if chosen.heads != self.num_key_value_heads:
            raise InvalidInputError(
                f"sparse_num_index_heads={chosen.heads}",
                f"each of num_key_value_heads={self.num_key_value_heads} has an index head",
                FIX_CONFIG,
            )
        if chosen.head_dim < self.rotary_dim:
            raise InvalidInputError(
                f"sparse_index_dim={chosen.head_dim}",
                f"{self.rotary_dim} of its channels are rotated",
                FIX_CONFIG,
            )


def _check_kind(read: ConfigReader) -> None:
    """Refuse what the layers do not compute."""
    for key, *served in (
        ("hidden_act", "swigluoai", "silu"),  # transformers writes silu and means the former.
        ("scoring_func", "sigmoid"),
        ("use_gemma_norm", True),
        ("use_qk_norm", True),
        ("qk_norm_type", "per_head"),
        ("attention_output_gate", False),
        ("tie_word_embeddings", False),
    ):
        given = read.get(key, served[0])
        if given not in served:
            raise InvalidInputError(
                f"{key}={given!r}",
                f"{read.model} is served with {key}={served[0]!r} alone",
                "Serve another checkpoint.",
            )
    kind = read.rope_parameters().get("rope_type", read.rope_parameters().get("type", "default"))
    if kind != "default":
        raise InvalidInputError(
            f"rope scaling of type {kind!r}",
            f"{read.model} is served without any",
            "Remove rope_scaling from config.json.",
        )


def _blocks(read: ConfigReader) -> Mapping[str, Any]:
    given = read.get("sparse_attention_config", {})
    if not isinstance(given, Mapping):
        raise InvalidInputError(
            f"sparse_attention_config={given!r}", "it is an object of named values", FIX_CONFIG
        )
    return given


def _frequencies(read: ConfigReader) -> Any:
    return _blocks(read).get("sparse_attention_freq")


def _layers(
    read: ConfigReader, layers: int, key: str, chosen: str, frequencies: Any
) -> tuple[bool, ...] | None:
    """One truth for each layer, from transformers' list of names or the published list of 0 and 1.

    Returns:
        None where the config has neither.
    """
    names = read.get(key)
    given = frequencies if names is None else [name == chosen for name in names]
    if given is None:
        return None
    if isinstance(given, str) or not hasattr(given, "__len__") or len(given) != layers:
        raise InvalidInputError(
            f"a list of layers {given!r} ({key}, or its published name)",
            f"it has one entry for each of num_hidden_layers={layers}",
            FIX_CONFIG,
        )
    return tuple(bool(one) for one in given)


def _selection(read: ConfigReader) -> BlockSelection:
    blocks = _blocks(read)
    if (kind := blocks.get("sparse_score_type", "max")) != "max":
        raise InvalidInputError(
            f"sparse_score_type={kind!r}",
            "a block's score is the largest of its keys'",
            "Serve another checkpoint.",
        )
    frequencies = blocks.get("sparse_attention_freq") or ()
    without = blocks.get("sparse_disable_index_value")
    if without is not None and any(
        sparse and not off for sparse, off in zip(frequencies, without, strict=False)
    ):
        raise InvalidInputError(
            f"sparse_disable_index_value={list(without)}",
            "the indexer has no values in any layer that selects blocks",
            "Serve another checkpoint.",
        )
    flat = {
        name: read.get(name, blocks.get(published)) for name, published in _PUBLISHED_BLOCKS.items()
    }
    sizes = ConfigReader(flat, read.model)
    return BlockSelection(
        heads=sizes.integer("index_n_heads", least=1),
        head_dim=sizes.integer("index_head_dim", least=2),
        block_size=sizes.integer("index_block_size", least=1),
        topk_blocks=sizes.integer("index_topk_blocks", least=1),
        init_blocks=sizes.integer("index_init_blocks", 0),
        local_blocks=sizes.integer("index_local_blocks", 0),
    )


def _rope_theta(read: ConfigReader) -> float:
    """Base of the rotary frequencies, without which transformers and vLLM mean 5e6."""
    given = read.get("rope_parameters") or read.get("rope_scaling") or {}
    return as_number("rope_theta", given.get("rope_theta") or read.get("rope_theta", 5e6))


def _rotary_dim(read: ConfigReader, head_dim: int) -> int:
    """Rotated channels of a head, the first ones."""
    parameters = read.rope_parameters()
    factor = parameters.get("partial_rotary_factor", read.get("partial_rotary_factor"))
    named = read.get("rotary_dim")
    if factor is not None:
        channels = as_number("partial_rotary_factor", factor) * head_dim
        if named is not None and named != channels:
            raise InvalidInputError(
                f"rotary_dim={named} beside partial_rotary_factor={factor}",
                f"the factor gives {channels:g} of head_dim={head_dim} channels",
                FIX_CONFIG,
            )
    else:
        channels = head_dim if named is None else read.integer("rotary_dim")
    if channels % 2 or not 2 <= channels <= head_dim:
        raise InvalidInputError(
            f"{channels:g} rotated channels (partial_rotary_factor, rotary_dim)",
            f"an even number up to head_dim={head_dim} is rotated in pairs",
            FIX_CONFIG,
        )
    return int(channels)
