"""Ling 2.5 as planning and checking see it: DeepSeek-V3 but for its layers of lightning attention.

vLLM serves it with its own model (0.27.1, ``models/bailing_moe_linear.py`` and
``bailing_moe_mtp.py``); names and shapes are those that it reads and that its authors' code has
(github.com/inclusionAI/Ring-V2.5).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from ascend_attention.caches import CacheKind, CacheRole, mla_caches
from ascend_models_deepseek.deepseek_v3 import weights as v3_weights
from ascend_models_deepseek.deepseek_v3.architecture import DEEPSEEK_V3
from ascend_models_deepseek.deepseek_v3.config import DeepseekV3Spec
from ascend_models_deepseek.deepseek_v3.sharding import Shard
from ascend_ops_core.checkpoint.config_reader import FIX_CONFIG, ConfigReader
from ascend_ops_core.checkpoint.table import TensorRule, WeightTable
from ascend_ops_core.errors import InvalidInputError

from ascend_vllm_plugin.planning.states import StatePages, StateUse, hybrid_block_tokens

__all__ = ["MODEL_TYPES", "PlannedBailing"]

MODEL_TYPES = ("bailing_hybrid",)
ARCHITECTURE = "BailingMoeV2_5ForCausalLM"
_FLOAT32 = 4
_CHUNK = 64
"""Tokens whose products with each other the chunked form holds at once."""

# Names in DeepSeek-V3's table and in a checkpoint of Ling 2.5.
_RENAMED = (
    ("model.embed_tokens.", "model.word_embeddings."),
    (".self_attn.o_proj.", ".attention.dense."),
    (".self_attn.", ".attention."),
    (".mlp.gate.e_score_correction_bias", ".mlp.gate.expert_bias"),
    (".shared_head.norm.", ".final_layernorm."),
)


@dataclass(frozen=True)
class PlannedBailing:
    """A model, with the sizes that planning varies.

    Attributes:
        text: what DeepSeek-V3's tables need, under its names.
        layer_group_size: layers of which the last one has latent attention.
        head_dim: channels of a head of lightning attention, of which there are as many.
        rotated: of them, rotated ones.
        group_norm_size: groups of its norm.
        use_qk_norm: its queries and keys are normed.
        n_routed_experts: experts of a layer.
        moe_intermediate_size: channels of an expert.
    """

    text: DeepseekV3Spec
    layer_group_size: int
    head_dim: int
    rotated: int
    group_norm_size: int
    use_qk_norm: bool
    n_routed_experts: int
    moe_intermediate_size: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Read ``config.json``.

        Raises:
            InvalidInputError: it describes no model that can be served.
        """
        if ARCHITECTURE not in (config.get("architectures") or ()):
            raise InvalidInputError(
                f"model_type='bailing_hybrid' with architectures={config.get('architectures')}",
                f"of this type vLLM 0.27.1 has {ARCHITECTURE} (Ling 2.5)",
                "Serve another model.",
            )
        if config.get("quantization_config"):
            raise InvalidInputError(
                "quantization_config in config.json",
                "Ling 2.5 is served by vLLM's own model, whose quantised products have no kernels "
                "here",
                "Plan and serve the checkpoint in bfloat16.",
            )
        read = ConfigReader(config, "Ling 2.5")
        text = DeepseekV3Spec.from_config(_as_deepseek(read, config))
        group = read.integer("layer_group_size", 5, least=1)
        if group == 1 or text.num_hidden_layers % group:
            raise InvalidInputError(
                f"num_hidden_layers={text.num_hidden_layers} with layer_group_size={group}",
                "layers come in whole groups of lightning attention and one of latent attention",
                FIX_CONFIG,
            )
        dim = read.integer("head_dim", 128, least=2)
        return cls(
            text=text,
            layer_group_size=group,
            head_dim=dim,
            rotated=int(dim * read.number("partial_rotary_factor", 0.5)),
            group_norm_size=read.integer("group_norm_size", 4, least=1),
            use_qk_norm=bool(read.get("use_qk_norm", True)),
            n_routed_experts=text.n_routed_experts,
            moe_intermediate_size=text.moe_intermediate_size,
        )

    @property
    def vocab_size(self) -> int:
        """Rows of embedding and head."""
        return self.text.vocab_size

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return self.text.hidden_size

    @property
    def num_attention_heads(self) -> int:
        """Heads of both kinds of attention."""
        return self.text.num_attention_heads

    @property
    def num_hidden_layers(self) -> int:
        """Main layers."""
        return self.text.num_hidden_layers

    @property
    def num_mtp_layers(self) -> int:
        """Draft layers."""
        return self.text.num_mtp_layers

    @property
    def max_position_embeddings(self) -> int:
        """Tokens of the longest context."""
        return self.text.max_position_embeddings

    @property
    def num_experts_per_tok(self) -> int:
        """Experts that a token visits."""
        return self.text.num_experts_per_tok

    @property
    def n_shared_experts(self) -> int:
        """Shared experts of a layer, in widths of a routed one."""
        return self.text.n_shared_experts

    def is_linear_layer(self, layer: int) -> bool:
        """Whether a layer has lightning attention; drafts, behind the main ones, never do."""
        main = layer < self.num_hidden_layers
        return main and (layer + 1) % self.layer_group_size != 0

    def shard(self, size: int, vocabulary: tuple[int, int]) -> Shard:
        """What the first of ``size`` tensor-parallel ranks holds.

        Raises:
            InvalidInputError: ``size`` does not divide the model.
        """
        if self.group_norm_size % size:
            usable = [n for n in range(1, size + 1) if self.group_norm_size % n == 0]
            raise InvalidInputError(
                f"tensor_parallel_size={size}",
                f"it must divide group_norm_size={self.group_norm_size}",
                f"Use one of {usable}.",
            )
        return Shard.of(self._varied, size, 0, vocabulary)

    def main_table(self, shard: Shard) -> WeightTable:
        """Tensors of the model but for its drafts."""
        table = v3_weights.main_table(DEEPSEEK_V3, self._varied, shard)
        rules = dict(self._published(table.rules))
        for layer in range(self.num_hidden_layers):
            if self.is_linear_layer(layer):
                rules.update(self._lightning(shard, f"model.layers.{layer}.attention"))
        return WeightTable(rules, table.ignored_prefixes)

    def mtp_table(self, shard: Shard) -> WeightTable:
        """Tensors of the drafts, which share embedding and head."""
        table = v3_weights.mtp_table(DEEPSEEK_V3, self._varied, shard)
        mains = tuple(
            one.replace("embed_tokens", "word_embeddings") for one in table.ignored_prefixes
        )
        return WeightTable(dict(self._published(table.rules)), mains)

    def caches(
        self,
        layer: int,
        *,
        dtype: torch.dtype,
        device: str,
        block_tokens: int | None,
        ranks: int,
        states: StateUse,
    ) -> list[CacheKind]:
        """The cache of one layer: latents of every token, or states, which ranks share by heads.

        Args:
            layer: number of the layer, drafts after the main ones.
            dtype: the model's; states have it too, as vLLM has them by default.
            device: a key of the cache table.
            block_tokens: asked for, or None.
            ranks: tensor-parallel ranks.
            states: how many states a request has.
        """
        state = self.num_attention_heads // ranks * self.head_dim**2 * dtype.itemsize
        latent = mla_caches(
            kv_lora_rank=self.text.kv_lora_rank,
            rotary_dim=self.text.qk_rope_head_dim,
            dtype=dtype,
            device=device,
        )[CacheRole.LATENT]
        tokens = hybrid_block_tokens(latent.row_bytes, state, block_tokens)
        if not self.is_linear_layer(layer):
            return [replace(latent, block_tokens=tokens)]
        role = CacheRole.RECURRENT_STATE
        return [StatePages(role, tokens, 0, tokens, state, torch.uint8, None, use=states)]

    def token_bytes(self, ranks: int, hidden: int, itemsize: int) -> int:
        """Bytes per token at the widest point of attention and of a dense network.

        Args:
            ranks: tensor-parallel ranks.
            hidden: bytes of a token's hidden state.
            itemsize: bytes of a value of the model's dtype.
        """
        text, heads = self.text, self.num_attention_heads // ranks
        # Queries before and after they are absorbed, and what was attended.
        head = 2 * text.qk_head_dim + 2 * text.kv_lora_rank + text.v_head_dim
        down = (text.q_lora_rank or 0) + text.kv_lora_rank + text.qk_rope_head_dim
        latent = (heads * head + 2 * down) * itemsize
        # Projections and the gate; in float32 queries, keys and values before and behind norm and
        # rotation, what was attended, normed and gated; a chunk's products and its first state.
        width = heads * self.head_dim
        chunk = (heads * _CHUNK + width * self.head_dim // _CHUNK) * _FLOAT32
        linear = 4 * width * itemsize + 9 * width * _FLOAT32 + chunk
        dense = 3 * text.intermediate_size // ranks * itemsize
        return 3 * hidden + max(latent, linear, dense)

    def _lightning(self, shard: Shard, name: str) -> Iterator[tuple[str, TensorRule]]:
        """Tensors of a layer's lightning attention, ``name`` ending in ``attention``."""
        hidden, heads, dim = self.hidden_size, self.num_attention_heads, self.head_dim
        width, held = heads * dim, shard.num_heads * dim
        rows = (slice(0, held),)
        yield (
            f"{name}.query_key_value.weight",
            TensorRule(
                (3 * width, hidden), name, source=(slice(None), rows[0]), view=(3, width, hidden)
            ),
        )
        yield f"{name}.g_proj.weight", TensorRule((width, hidden), name, source=rows)
        yield f"{name}.g_norm.weight", TensorRule((width,), name, source=rows)
        own = (slice(None), *rows)
        yield f"{name}.dense.weight", TensorRule((hidden, width), name, source=own)
        for norm in ("query_layernorm", "key_layernorm") if self.use_qk_norm else ():
            yield f"{name}.{norm}.weight", TensorRule((dim,), name)

    def _published(self, rules: Mapping[str, TensorRule]) -> Iterator[tuple[str, TensorRule]]:
        """DeepSeek-V3's rules of what Ling 2.5 has too, under its names."""
        for name, rule in rules.items():
            layer = int(name.split(".")[2]) if name.startswith("model.layers.") else None
            lightning = layer is not None and self.is_linear_layer(layer)
            if rule.optional or (lightning and ".self_attn." in name):
                continue
            for theirs, ours in _RENAMED:
                name = name.replace(theirs, ours)
            yield name, rule

    @property
    def _varied(self) -> DeepseekV3Spec:
        """The text model with the sizes of this object."""
        return replace(
            self.text,
            n_routed_experts=self.n_routed_experts,
            moe_intermediate_size=self.moe_intermediate_size,
        )


def _as_deepseek(read: ConfigReader, config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with DeepSeek-V3's keys for what Ling 2.5 names otherwise."""
    experts = read.integer("num_experts", 256)
    inter = read.integer("moe_intermediate_size", 512)
    shared = read.integer("num_shared_experts", 1)
    shared *= read.integer("moe_shared_expert_intermediate_size", inter)
    if experts and shared % inter:
        raise InvalidInputError(
            f"shared experts of {shared} channels",
            f"they are counted in widths of a routed one, moe_intermediate_size={inter}",
            "Serve the checkpoint without a plan.",
        )
    if any(read.get(name, False) for name in ("use_bias", "use_qkv_bias")):
        raise InvalidInputError(
            "use_bias or use_qkv_bias",
            "vLLM's model has no biases in latent attention",
            "Serve a checkpoint without biases.",
        )
    bias = read.get("moe_router_enable_expert_bias", True)
    return {
        **config,
        "n_routed_experts": experts,
        "n_shared_experts": shared // inter if experts else 0,
        "scoring_func": read.get("score_function", "sigmoid"),
        "topk_method": "noaux_tc" if bias else "greedy",
        "attention_bias": False,
    }
