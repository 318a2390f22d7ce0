"""DeepSeek-V4's configuration, read from the original keys or from transformers' keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ascend_attention.caches import check_ratio
from ascend_fused_moe.ops.routing import SCORING_FUNCTIONS
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.rotary import YarnScaling, rotary_dim_of

_RATIO_OF_LAYER_TYPE = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}
_MLP_LAYER_TYPES = ("hash_moe", "moe")


@dataclass(frozen=True)
class DeepseekV4Spec:
    """Everything that the model's code reads from a config, validated.

    Attributes follow the original config's names; ``compress_ratios`` has one entry per layer,
    and ``mtp_compress_ratios`` one per MTP layer.
    """

    vocab_size: int
    hidden_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    rope_head_dim: int
    q_lora_rank: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    scoring_func: str
    norm_topk_prob: bool
    routed_scaling_factor: float
    max_position_embeddings: int
    rope_theta: float
    compress_rope_theta: float
    yarn: YarnScaling | None
    compress_ratios: tuple[int, ...]
    mtp_compress_ratios: tuple[int, ...]
    num_hash_layers: int
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    swiglu_limit: float
    sliding_window: int
    o_groups: int
    o_lora_rank: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    rms_norm_eps: float

    @property
    def num_mtp_layers(self) -> int:
        """Layers that the MTP draft adds."""
        return len(self.mtp_compress_ratios)

    def compress_ratio(self, layer: int) -> int:
        """Ratio of a layer; MTP layers follow the main ones."""
        return (self.compress_ratios + self.mtp_compress_ratios)[layer]

    def is_hash_layer(self, layer: int) -> bool:
        """True when the layer's experts are chosen by token id."""
        return layer < self.num_hash_layers

    @classmethod
    def from_config(cls, config: Any, mtp_layers: int | None = None) -> DeepseekV4Spec:
        """Read a Hugging Face config object or a mapping.

        Args:
            config: what is read.
            mtp_layers: layers of the draft, where another key than the MTP draft's counts them.

        Raises:
            InvalidInputError: a missing key, an unknown compress ratio, or sizes that do not fit
                together.
        """
        read = ConfigValues(config)
        layers = read.integer("num_hidden_layers")
        if mtp_layers is None:
            mtp_layers = read.integer("num_nextn_predict_layers", 0)
        ratios = _compress_ratios(read, layers, mtp_layers)
        head_dim = read.integer("head_dim")
        spec = cls(
            vocab_size=read.integer("vocab_size"),
            hidden_size=read.integer("hidden_size"),
            moe_intermediate_size=read.integer("moe_intermediate_size"),
            num_hidden_layers=layers,
            num_attention_heads=read.integer("num_attention_heads"),
            head_dim=head_dim,
            rope_head_dim=rotary_dim_of(
                head_dim,
                rotary_dim=read.get("qk_rope_head_dim"),
                partial_rotary_factor=read.get("partial_rotary_factor"),
            ),
            q_lora_rank=read.integer("q_lora_rank"),
            n_routed_experts=read.integer("n_routed_experts", read.get("num_local_experts")),
            n_shared_experts=read.integer("n_shared_experts", 1),
            num_experts_per_tok=read.integer("num_experts_per_tok"),
            scoring_func=read.get("scoring_func", "sqrtsoftplus"),
            norm_topk_prob=bool(read.get("norm_topk_prob", True)),
            routed_scaling_factor=float(read.get("routed_scaling_factor", 1.0)),
            max_position_embeddings=read.integer("max_position_embeddings"),
            rope_theta=_main_theta(read),
            compress_rope_theta=_compress_theta(read),
            yarn=_yarn(read),
            compress_ratios=ratios[:layers],
            mtp_compress_ratios=ratios[layers:],
            num_hash_layers=num_hash_layers(config),
            hc_mult=read.integer("hc_mult", 4),
            hc_sinkhorn_iters=read.integer("hc_sinkhorn_iters", 20),
            hc_eps=float(read.get("hc_eps", 1e-6)),
            swiglu_limit=float(read.get("swiglu_limit") or 0.0),
            sliding_window=read.integer("sliding_window"),
            o_groups=read.integer("o_groups"),
            o_lora_rank=read.integer("o_lora_rank"),
            index_n_heads=read.integer("index_n_heads"),
            index_head_dim=read.integer("index_head_dim"),
            index_topk=read.integer("index_topk"),
            rms_norm_eps=float(read.get("rms_norm_eps", 1e-6)),
        )
        spec._check(read)
        return spec

    def _check(self, read: ConfigValues) -> None:
        if self.scoring_func not in SCORING_FUNCTIONS:
            raise InvalidInputError(
                f"scoring_func={self.scoring_func!r}",
                f"known are {', '.join(SCORING_FUNCTIONS)}",
                "Correct it in config.json.",
            )
        if read.get("tie_word_embeddings", False):
            raise InvalidInputError(
                "tie_word_embeddings=true",
                "DeepSeek-V4 checkpoints carry a separate head.weight",
                "Set it to false and store the head.",
            )
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise InvalidInputError(
                    f"{name}={getattr(self, name)}", "it must be at least 1", FIX_CONFIG
                )
        if self.swiglu_limit < 0:
            raise InvalidInputError(
                f"swiglu_limit={self.swiglu_limit}",
                "it must be positive",
                "Use 0 or null to switch it off.",
            )
        rules = [
            ("num_attention_heads", self.num_attention_heads, "o_groups", self.o_groups),
            ("head_dim", self.head_dim, "an even split", 2),
        ]
        for name, value, by_name, by in rules:
            if value % by:
                raise InvalidInputError(
                    f"{name}={value}", f"it must be divisible by {by_name} ({by})", FIX_CONFIG
                )
        if self.num_experts_per_tok > self.n_routed_experts:
            raise InvalidInputError(
                f"num_experts_per_tok={self.num_experts_per_tok}",
                f"there are {self.n_routed_experts} routed experts",
                FIX_CONFIG,
            )
        if 4 in self.compress_ratios and self.rope_head_dim > self.index_head_dim:
            raise InvalidInputError(
                f"qk_rope_head_dim={self.rope_head_dim}",
                f"indexer heads have {self.index_head_dim} channels",
                FIX_CONFIG,
            )


FIX_CONFIG = "Correct config.json."
_AT_LEAST_ONE = (
    "vocab_size",
    "hidden_size",
    "moe_intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "head_dim",
    "q_lora_rank",
    "n_routed_experts",
    "num_experts_per_tok",
    "max_position_embeddings",
    "hc_mult",
    "hc_sinkhorn_iters",
    "sliding_window",
    "o_groups",
    "o_lora_rank",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
)


class ConfigValues:
    """Values of a config, whichever way it is spelled."""

    def __init__(self, config: Any) -> None:
        self._config = config

    def get(self, key: str, default: Any = None) -> Any:
        if isinstance(self._config, Mapping):
            value = self._config.get(key)
        else:
            value = getattr(self._config, key, None)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if value is None:
            raise InvalidInputError(
                f"config without {key!r}", "DeepSeek-V4 needs it", "Add it to config.json."
            )
        # A remainder of NaN, which infinity also leaves, is true.
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or value < 0 or value % 1:
            raise InvalidInputError(
                f"{key}={value!r}", "it must be a non-negative integer", FIX_CONFIG
            )
        return int(value)


def _compress_ratios(read: ConfigValues, layers: int, mtp_layers: int) -> tuple[int, ...]:
    ratios: Sequence[int] | None = read.get("compress_ratios")
    if ratios is None:
        types: Sequence[str] | None = read.get("layer_types")
        if types is None:
            raise InvalidInputError(
                "config without 'compress_ratios'",
                "DeepSeek-V4 needs one ratio per layer",
                "Add compress_ratios (or transformers' layer_types) to config.json.",
            )
        ratios = [ratio_of(t) for t in types]
        _check_rates(read)
    # A ratio of 1 is another spelling of "no compression".
    result = [0 if r == 1 else int(r) for r in ratios]
    for ratio in result:
        check_ratio(ratio)
    if len(result) < layers:
        raise InvalidInputError(
            f"compress_ratios with {len(result)} entries",
            f"the model has {layers} layers",
            "Give one ratio per layer (and optionally one per MTP layer).",
        )
    # Configs may leave the MTP layers out; they then see the sliding window only.
    result = (result + [0] * mtp_layers)[: layers + mtp_layers]
    if any(result[layers:]):
        raise InvalidInputError(
            f"compress ratio {result[layers:]} of the MTP layers",
            "a draft's caches must lie in one KV cache group, that of the sliding window",
            "Use ratio 0 for MTP layers.",
        )
    return tuple(result)


def ratio_of(layer_type: str) -> int:
    """Compress ratio of one of transformers' attention types.

    Raises:
        InvalidInputError: an unknown type.
    """
    if layer_type not in _RATIO_OF_LAYER_TYPE:
        raise InvalidInputError(
            f"layer_types with {layer_type!r}",
            f"known are {', '.join(_RATIO_OF_LAYER_TYPE)}",
            FIX_CONFIG,
        )
    return _RATIO_OF_LAYER_TYPE[layer_type]


def _check_rates(read: ConfigValues) -> None:
    for layer_type, rate in (read.get("compress_rates") or {}).items():
        expected = _RATIO_OF_LAYER_TYPE.get(layer_type)
        if expected is not None and rate != expected:
            check_ratio(int(rate))
            raise InvalidInputError(
                f"compress_rates[{layer_type!r}]={rate}",
                f"this attention is defined for a rate of {expected}",
                FIX_CONFIG,
            )


def num_hash_layers(config: Any) -> int:
    """Leading layers with hash routing, in either spelling.

    Raises:
        InvalidInputError: an unknown type of layer, or a hash layer behind another one.
    """
    read = ConfigValues(config)
    types: Sequence[str] | None = read.get("mlp_layer_types")
    if types is None or read.get("num_hash_layers") is not None:
        return read.integer("num_hash_layers", 0)
    unknown = sorted(set(types) - set(_MLP_LAYER_TYPES))
    hashed = sum(t == "hash_moe" for t in types)
    if unknown or "hash_moe" in types[hashed:]:
        raise InvalidInputError(
            f"mlp_layer_types={list(types)}",
            f"known are {', '.join(_MLP_LAYER_TYPES)}, hash layers first",
            FIX_CONFIG,
        )
    return hashed


def _rope_parameters(read: ConfigValues, branch: str) -> Mapping[str, Any]:
    nested = read.get("rope_parameters") or {}
    return nested.get(branch) or {} if isinstance(nested.get(branch), Mapping) else {}


def _main_theta(read: ConfigValues) -> float:
    return float(_rope_parameters(read, "main").get("rope_theta") or read.get("rope_theta", 1e4))


def _compress_theta(read: ConfigValues) -> float:
    nested = _rope_parameters(read, "compress").get("rope_theta")
    return float(nested or read.get("compress_rope_theta", 1.6e5))


def _yarn(read: ConfigValues) -> YarnScaling | None:
    """Scaling of the compressed branch; the sliding-window layers use plain frequencies."""
    raw = _rope_parameters(read, "compress") or read.get("rope_scaling")
    raw = raw or read.get("rope_parameters") or {}
    kind = raw.get("rope_type", raw.get("type", "default"))
    if kind == "default":
        return None
    if kind != "yarn":
        raise InvalidInputError(
            f"rope scaling of type {kind!r}",
            "DeepSeek-V4 uses 'yarn' or none",
            "Correct rope_scaling in config.json.",
        )
    attention_factor = raw.get("attention_factor", 1.0)
    if attention_factor not in (None, 1.0):
        raise InvalidInputError(
            f"attention_factor={attention_factor}",
            "DeepSeek-V4 does not scale cos and sin",
            "Remove it from rope_scaling.",
        )
    try:
        return YarnScaling(
            factor=float(raw["factor"]),
            original_max_position=int(raw["original_max_position_embeddings"]),
            beta_fast=float(raw.get("beta_fast", 32)),
            beta_slow=float(raw.get("beta_slow", 1)),
        )
    except KeyError as error:
        raise InvalidInputError(
            f"rope_scaling without {error.args[0]!r}", "YaRN needs it", "Add it to config.json."
        ) from error
