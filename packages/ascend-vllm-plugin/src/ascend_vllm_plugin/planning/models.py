"""What planning and checking ask of a model: its config, tensors, shares and caches, by family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from ascend_attention.caches import CacheKind, latent_blocks, layer_caches
from ascend_attention.layers.output_projection import ProjectionPart
from ascend_models_deepseek.architectures import ARCHITECTURES
from ascend_models_deepseek.deepseek_v3 import weights as v3_weights
from ascend_models_deepseek.deepseek_v3.architecture import Architecture
from ascend_models_deepseek.deepseek_v3.config import DeepseekV3Spec
from ascend_models_deepseek.deepseek_v3.latents import wants_int8_latents
from ascend_models_deepseek.deepseek_v3.quantization import LAYER_RULES as V3_RULES
from ascend_models_deepseek.deepseek_v3.sharding import Shard as V3Shard
from ascend_models_deepseek.deepseek_v4 import weights as v4_weights
from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_models_deepseek.deepseek_v4.quantization import LAYER_RULES as V4_RULES
from ascend_models_deepseek.deepseek_v4.sharding import Shard as V4Shard
from ascend_models_kimi.kimi_linear.quantization import LAYER_RULES as KIMI_RULES
from ascend_models_minimax.minimax_m3.quantization import LAYER_RULES as M3_RULES
from ascend_ops_core.checkpoint.table import WeightTable
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.quantized_weights import LayerRules, QuantizationResolver, read_modelslim
from ascend_ops_core.quantized_weights.descriptions import CacheDescription

from ascend_vllm_plugin.compressed_caches import block_sizes
from ascend_vllm_plugin.planning import qwen3_next, qwen3_next_tensors
from ascend_vllm_plugin.planning.bailing import MODEL_TYPES as BAILING_TYPES
from ascend_vllm_plugin.planning.bailing import PlannedBailing
from ascend_vllm_plugin.planning.dense import MODEL_TYPES as DENSE_TYPES
from ascend_vllm_plugin.planning.dense import PlannedDense
from ascend_vllm_plugin.planning.dense import Shard as DenseShard
from ascend_vllm_plugin.planning.dense import check_block as check_dense_block
from ascend_vllm_plugin.planning.kimi import MODEL_TYPES as KIMI_TYPES
from ascend_vllm_plugin.planning.kimi import PlannedKimi, description_at_the_top
from ascend_vllm_plugin.planning.kimi import Shard as KimiShard
from ascend_vllm_plugin.planning.minimax import MODEL_TYPES as M3_TYPES
from ascend_vllm_plugin.planning.minimax import PlannedMiniMaxM3
from ascend_vllm_plugin.planning.minimax import Shard as M3Shard
from ascend_vllm_plugin.planning.qwen3_next_config import MODEL_TYPES as QWEN3_NEXT_TYPES
from ascend_vllm_plugin.planning.qwen3_next_config import Qwen3NextSpec
from ascend_vllm_plugin.planning.qwen3_next_tensors import Shard as Qwen3NextShard
from ascend_vllm_plugin.planning.states import SMALLEST_BLOCK, StateUse

ModelSpec = (
    DeepseekV4Spec
    | DeepseekV3Spec
    | PlannedMiniMaxM3
    | PlannedKimi
    | PlannedBailing
    | Qwen3NextSpec
    | PlannedDense
)
ModelShard = V4Shard | V3Shard | M3Shard | KimiShard | Qwen3NextShard | DenseShard

V4 = "deepseek_v4"
_OTHER_TYPES = (*M3_TYPES, *KIMI_TYPES, *BAILING_TYPES, *QWEN3_NEXT_TYPES, *DENSE_TYPES)
MODEL_TYPES = (V4, *ARCHITECTURES, *_OTHER_TYPES)


def read_spec(config: Mapping[str, Any]) -> ModelSpec:
    """The validated config of a model.

    Args:
        config: ``config.json``, whose ``model_type`` is one of :data:`MODEL_TYPES`.

    Raises:
        InvalidInputError: the config describes no model that can be served.
    """
    kind = config["model_type"]
    if kind == V4:
        return DeepseekV4Spec.from_config(config)
    if kind in M3_TYPES:
        return PlannedMiniMaxM3.from_config(config)
    if kind in KIMI_TYPES:
        return PlannedKimi.from_config(config)
    if kind in BAILING_TYPES:
        return PlannedBailing.from_config(config)
    if kind in QWEN3_NEXT_TYPES:
        return Qwen3NextSpec.from_config(config)
    if kind in DENSE_TYPES:
        return PlannedDense.from_config(config)
    return ARCHITECTURES[kind].spec.from_config(config)


def as_described(spec: ModelSpec, resolver: QuantizationResolver) -> ModelSpec:
    """A model with the products that its checkpoint's description leads to."""
    return spec.described(resolver) if isinstance(spec, PlannedMiniMaxM3) else spec


def main_table(spec: ModelSpec, shard: ModelShard) -> WeightTable:
    """Tensors of the main model."""
    if isinstance(spec, DeepseekV4Spec):
        assert isinstance(shard, V4Shard)
        return v4_weights.main_table(spec, shard)
    if isinstance(spec, PlannedMiniMaxM3):
        assert isinstance(shard, M3Shard)
        return spec.main_table(shard)
    if isinstance(spec, PlannedKimi):
        assert isinstance(shard, KimiShard)
        return spec.main_table(shard)
    if isinstance(spec, PlannedBailing):
        assert isinstance(shard, V3Shard)
        return spec.main_table(shard)
    if isinstance(spec, Qwen3NextSpec):
        assert isinstance(shard, Qwen3NextShard)
        return qwen3_next_tensors.main_table(spec, shard)
    if isinstance(spec, PlannedDense):
        assert isinstance(shard, DenseShard)
        return spec.main_table(shard)
    assert isinstance(shard, V3Shard)
    return v3_weights.main_table(_architecture(spec), spec, shard)


def mtp_table(spec: ModelSpec, shard: ModelShard) -> WeightTable:
    """Tensors of the MTP draft."""
    if isinstance(spec, DeepseekV4Spec):
        assert isinstance(shard, V4Shard)
        return v4_weights.mtp_table(spec, shard)
    if isinstance(spec, PlannedMiniMaxM3):
        assert isinstance(shard, M3Shard)
        return spec.mtp_table(shard)
    if isinstance(spec, PlannedKimi):
        assert isinstance(shard, KimiShard)
        return spec.mtp_table(shard)
    if isinstance(spec, PlannedBailing):
        assert isinstance(shard, V3Shard)
        return spec.mtp_table(shard)
    if isinstance(spec, Qwen3NextSpec):
        assert isinstance(shard, Qwen3NextShard)
        return qwen3_next_tensors.mtp_table(spec, shard)
    if isinstance(spec, PlannedDense):
        return WeightTable({}, ())
    assert isinstance(shard, V3Shard)
    return v3_weights.mtp_table(_architecture(spec), spec, shard)


def draft_prefixes(spec: ModelSpec) -> tuple[str, ...]:
    """How names of the draft's tensors begin."""
    if isinstance(spec, DeepseekV4Spec | Qwen3NextSpec):
        return ("mtp.",)
    if isinstance(spec, PlannedMiniMaxM3):
        return (f"{spec.root}model.mtp.",)
    first = spec.num_hidden_layers
    root = spec.root if isinstance(spec, PlannedKimi) else ""
    return tuple(f"{root}model.layers.{first + i}." for i in range(max(spec.num_mtp_layers, 1)))


def draft_key(spec: ModelSpec) -> str:
    """The config's key for the number of MTP layers."""
    m3 = isinstance(spec, PlannedMiniMaxM3)
    return "num_mtp_modules" if m3 else "num_nextn_predict_layers"


def gives_hidden_states(spec: ModelSpec) -> bool:
    """Whether a draft that reads the streams between the model's layers is planned beside it."""
    return isinstance(spec, PlannedDense | PlannedMiniMaxM3 | PlannedKimi | DeepseekV4Spec)


def shares_contexts(spec: ModelSpec) -> bool:
    """Whether cards may share the caches of a context (decode context parallelism)."""
    return isinstance(spec, DeepseekV3Spec)


def shard_of(
    spec: ModelSpec,
    size: int,
    vocabulary: tuple[int, int],
    projection: ProjectionPart | None = None,
) -> ModelShard:
    """What the first of ``size`` tensor-parallel ranks holds, a slice of each expert included.

    Args:
        spec: the model.
        size: number of ranks.
        vocabulary: rows of embedding and head.
        projection: its part of DeepSeek-V4's output projection, or None for that of the variant
            which is chosen for such ranks alone.

    Raises:
        InvalidInputError: ``size`` does not divide the model.
    """
    if isinstance(spec, DeepseekV4Spec):
        return V4Shard.of(spec, size, 0, vocabulary, projection)
    if isinstance(spec, PlannedMiniMaxM3 | PlannedKimi | PlannedBailing | PlannedDense):
        return spec.shard(size, vocabulary)
    if isinstance(spec, Qwen3NextSpec):
        return Qwen3NextShard.of(spec, size, vocabulary)
    return V3Shard.of(spec, size, 0, vocabulary)


def with_whole_experts(
    shard: ModelShard, intermediate: int, shared: int, vocabulary: tuple[int, int]
) -> ModelShard:
    """A share with whole routed experts.

    Args:
        shard: of heads and dense networks.
        intermediate: channels of an expert.
        shared: channels of the shared experts that this rank holds.
        vocabulary: its rows of embedding and head.
    """
    routed, own = (0, intermediate), (0, shared)
    assert not isinstance(shard, DenseShard)
    if isinstance(shard, V4Shard):
        return replace(shard, intermediate=routed, shared_intermediate=own, vocabulary=vocabulary)
    return replace(shard, intermediate=routed, shared=own, vocabulary=vocabulary)


def caches_of_layer(
    spec: ModelSpec,
    layer: int,
    *,
    dtype: torch.dtype,
    device: str,
    block_tokens: int | None,
    keep_dtype: bool,
    int8_latents: bool = False,
    ranks: int = 1,
    states: StateUse | None = None,
) -> list[CacheKind]:
    """The caches of one layer, MTP layers after the main ones.

    Args:
        spec: the model.
        layer: number of the layer.
        dtype: the model's dtype.
        device: a device family of the cache table.
        block_tokens: tokens per block, or None for the family's default.
        keep_dtype: rows keep the model's dtype, whatever the family fixes.
        int8_latents: latents have eight bits.
        ranks: tensor-parallel ranks, which share key-value heads out; latents lie whole on each.
        states: how many recurrent states a request has, or None for one.

    Raises:
        InvalidInputError: an unknown device family or block size.
    """
    if isinstance(spec, PlannedMiniMaxM3):
        return spec.caches(
            layer, dtype=dtype, device=device, block_tokens=block_tokens, ranks=ranks
        )
    if isinstance(spec, PlannedKimi | PlannedBailing):
        return spec.caches(
            layer,
            dtype=dtype,
            device=device,
            block_tokens=block_tokens,
            ranks=ranks,
            states=states or StateUse(),
        )
    if isinstance(spec, Qwen3NextSpec):
        return qwen3_next.caches(
            spec,
            layer,
            dtype=dtype,
            block_tokens=block_tokens,
            ranks=ranks,
            states=states or StateUse(),
        )
    if isinstance(spec, PlannedDense):
        return spec.caches(layer, dtype=dtype, block_tokens=block_tokens, ranks=ranks)
    if not isinstance(spec, DeepseekV4Spec):
        return _architecture(spec).caches(
            spec, layer, dtype, device, block_tokens, keep_dtype, int8_latents
        )
    kinds = layer_caches(
        spec.compress_ratio(layer),
        head_dim=spec.head_dim,
        rotary_dim=spec.rope_head_dim,
        index_head_dim=spec.index_head_dim,
        sliding_window=spec.sliding_window,
        dtype=dtype,
        device=device,
        block_tokens=block_tokens,
        keep_dtype=keep_dtype,
    )
    return list(kinds.values())


def check_block_size(spec: ModelSpec, device: str, block_size: int | None) -> None:
    """Refuse a block size that the model's caches do not have on a device.

    Raises:
        InvalidInputError: it names the sizes that they have.
    """
    if isinstance(spec, DeepseekV4Spec):
        kind = "compressed"
        ratios = [spec.compress_ratio(layer) for layer in range(spec.num_hidden_layers)]
        sizes = block_sizes(device, ratios)
    elif isinstance(spec, PlannedMiniMaxM3):
        kind, sizes = "selected", [spec.block_tokens]
    elif isinstance(spec, PlannedKimi | PlannedBailing | Qwen3NextSpec):
        if device != "cpu" and (block_size or 0) % SMALLEST_BLOCK:
            raise InvalidInputError(
                f"block_size={block_size}",
                f"on {device} kernels read {SMALLEST_BLOCK} tokens of a cache at once",
                f"Leave --block-size unset, or use a multiple of {SMALLEST_BLOCK}.",
            )
        return
    elif isinstance(spec, PlannedDense):
        check_dense_block(block_size, device)
        return
    else:
        kind, sizes = "latent", list(latent_blocks(device))
    if block_size not in (None, *sizes):
        raise InvalidInputError(
            f"block_size={block_size}",
            f"on {device} {kind} caches of this model use blocks of "
            f"{' or '.join(map(str, sizes))} tokens",
            "Leave --block-size unset, or use one of them.",
        )


def rotary_tables(spec: ModelSpec) -> tuple[int, int]:
    """How many tables of cos and sin a model has, and how many channels each rotates."""
    if isinstance(spec, DeepseekV4Spec):
        return 2, spec.rope_head_dim
    if isinstance(spec, PlannedMiniMaxM3):
        return 1, spec.text.rotary_dim
    if isinstance(spec, PlannedKimi):
        return 0, 0
    if isinstance(spec, PlannedBailing):
        # Those of latent and of lightning attention, side by side.
        return 1, spec.text.qk_rope_head_dim + spec.rotated
    if isinstance(spec, Qwen3NextSpec):
        return 1, spec.rotary_dim
    if isinstance(spec, PlannedDense):
        return 1, spec.head_dim
    return 1, spec.qk_rope_head_dim


def rotary_bytes(
    spec: ModelSpec, max_model_len: int, *, draft: bool = False, dtype: torch.dtype
) -> int:
    """Bytes of the tables of cos and sin, one row per position.

    They are float32, except where vLLM makes them, of the model's ``dtype``.
    """
    if isinstance(spec, PlannedDense):
        return spec.rotary_bytes(dtype)
    count, width = rotary_tables(spec)
    one = 2 * max_model_len * (width // 2) * 4
    return count * one * (2 if draft else 1)


def widest_tensor_parallel(spec: ModelSpec) -> int:
    """Tensor-parallel ranks beyond which layers exchange more than their sums."""
    return spec.o_groups if isinstance(spec, DeepseekV4Spec) else spec.num_attention_heads


def resolver_of(config: Mapping[str, Any], directory: Path) -> QuantizationResolver:
    """Which layer of a checkpoint is stored how.

    Args:
        config: ``config.json``, whose ``model_type`` is one of :data:`MODEL_TYPES`.
        directory: where ModelSlim's description may lie beside it.

    Raises:
        InvalidInputError: a format that is not known, or a description that cannot be read.
    """
    return QuantizationResolver.of(
        description_at_the_top(config), layer_rules(config), read_modelslim(directory)
    )


def layer_rules(config: Mapping[str, Any]) -> LayerRules:
    """What a model adds to the description of its quantised checkpoints."""
    kind = config.get("model_type")
    if kind in M3_TYPES:
        return M3_RULES
    if kind in KIMI_TYPES:
        return KIMI_RULES
    return V4_RULES if kind == V4 else V3_RULES


def has_int8_latents(
    spec: ModelSpec, described: CacheDescription, device: str, cache_dtype: str
) -> bool:
    """Whether latents are cached in eight bits because the checkpoint wants it.

    Args:
        spec: the model.
        described: what the checkpoint says of caches.
        device: a key of the cache table.
        cache_dtype: ``"family"`` or ``"model"``, as in ``additional_config``.
    """
    if not isinstance(spec, DeepseekV3Spec):
        return False
    sparse = _architecture(spec).sparse
    return wants_int8_latents(described, cache_dtype, sparse=sparse, family=device)


def _architecture(spec: DeepseekV3Spec) -> Architecture:
    return next(one for one in ARCHITECTURES.values() if one.spec is type(spec))
