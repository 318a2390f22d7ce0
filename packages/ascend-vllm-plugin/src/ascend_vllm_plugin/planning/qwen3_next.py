"""What Qwen3-Next keeps of a request and takes of a step, in the terms of the planner."""

from __future__ import annotations

import torch
from ascend_attention.caches import CacheKind, CacheRole
from ascend_attention.msa_caches import KeyValueKind
from ascend_attention.ops.gated_delta_rule import CHUNK
from ascend_attention.state_caches import gdn_state
from ascend_ops_core.errors import InvalidInputError

from ascend_vllm_plugin.planning.qwen3_next_config import Qwen3NextSpec
from ascend_vllm_plugin.planning.qwen3_next_tensors import Shard
from ascend_vllm_plugin.planning.states import StatePages, StateUse, hybrid_block_tokens

__all__ = ["caches", "check_format", "token_bytes"]

_FLOAT32 = 4


def caches(
    spec: Qwen3NextSpec,
    layer: int,
    *,
    dtype: torch.dtype,
    block_tokens: int | None,
    ranks: int,
    states: StateUse,
) -> list[CacheKind]:
    """The cache of one layer on one rank: keys and values of every token, or states.

    Args:
        spec: the model.
        layer: number of the layer, drafts after the main ones.
        dtype: the model's; states have it too, as vLLM has them by default.
        block_tokens: asked for, or None.
        ranks: tensor-parallel ranks.
        states: how many states a request has.

    Raises:
        InvalidInputError: heads that the ranks cannot share.
    """
    shard = Shard.of(spec, ranks, (0, 0))
    state = gdn_state(
        key_heads=spec.linear_num_key_heads,
        value_heads=spec.linear_num_value_heads,
        key_dim=spec.linear_key_head_dim,
        value_dim=spec.linear_value_head_dim,
        conv_width=spec.linear_conv_kernel_dim,
        dtype=dtype,
        ranks=ranks,
        drafts=states.drafts,
    )
    heads = shard.kv_heads[1]
    width = 2 * heads * spec.head_dim
    tokens = hybrid_block_tokens(width * dtype.itemsize, state.slot_bytes, block_tokens)
    if spec.is_delta_layer(layer):
        role, size = CacheRole.RECURRENT_STATE, state.slot_bytes
        return [StatePages(role, tokens, 0, tokens, size, torch.uint8, None, use=states)]
    return [
        KeyValueKind(
            CacheRole.KEY_VALUE,
            1,
            0,
            tokens,
            width,
            dtype,
            None,
            num_kv_heads=heads,
            head_dim=spec.head_dim,
        )
    ]


def token_bytes(spec: Qwen3NextSpec, ranks: int, hidden: int, itemsize: int) -> int:
    """Bytes per token at the widest point of attention and of a dense network.

    Args:
        spec: the model.
        ranks: tensor-parallel ranks.
        hidden: bytes of a token's hidden state.
        itemsize: bytes of a value of the model's dtype.
    """
    shard = Shard.of(spec, ranks, (0, 0))
    # Queries, gates, keys and values before norm and rotation and behind it, and what was attended.
    rows = (2 * shard.heads[1] + 2 * shard.kv_heads[1]) * spec.head_dim
    full = (2 * rows + shard.heads[1] * spec.head_dim) * itemsize
    each = spec.linear_num_value_heads // spec.linear_num_key_heads
    keys = shard.key_heads[1] * spec.linear_key_head_dim
    values = shard.key_heads[1] * each * spec.linear_value_head_dim
    # Projections before and behind the convolution, gate and output; corrections and values of a
    # chunk in float32, its two triangles, and the state at its start.
    heads = shard.key_heads[1] * each
    chunk = heads * 2 * CHUNK * _FLOAT32 + 2 * (keys * each + values) * _FLOAT32
    chunk += values * spec.linear_key_head_dim * _FLOAT32 // CHUNK
    linear = (2 * (2 * keys + values) + 2 * values) * itemsize + chunk
    dense = 3 * shard.dense[1] * itemsize
    return 3 * hidden + max(full, linear, dense)


def check_format(weight_format: str, model: str = "Qwen3-Next") -> None:
    """Refuse weights of eight bits, for a model of vLLM's own.

    Raises:
        InvalidInputError: another format than the model's dtype.
    """
    if weight_format != "model":
        raise InvalidInputError(
            f"weight format '{weight_format}'",
            f"{model} is served by vLLM's own model, whose quantised products have no kernels here",
            "Leave --weight-format at auto, or set it to model.",
        )
