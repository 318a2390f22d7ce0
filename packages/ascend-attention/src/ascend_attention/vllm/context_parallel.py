"""Decode context parallelism of vLLM: which ranks share a context, and where a rank's rows go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from vllm.distributed.parallel_state import get_dcp_group
from vllm.v1.attention.backend import CommonAttentionMetadata

from ascend_attention.context_shard import ContextShard
from ascend_attention.layers.context_parallel import ContextParallel
from ascend_attention.ops.paged_rows import RowIndex

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def context_parallel(vllm_config: VllmConfig, num_heads: int) -> ContextParallel | None:
    """The exchanges of this process; None where every rank has whole contexts.

    Args:
        vllm_config: the engine's config.
        num_heads: query heads of a rank.
    """
    parallel = vllm_config.parallel_config
    if parallel.decode_context_parallel_size == 1:
        return None
    return ContextParallel(get_dcp_group(), parallel.cp_kv_cache_interleave_size, num_heads)


def own_rows(
    shard: ContextShard,
    request: torch.Tensor,
    position: torch.Tensor,
    block_table: torch.Tensor,
    slots: torch.Tensor,
    page: int,
) -> RowIndex:
    """Where the rows of a step's tokens go on this rank; a negative block for one that does not.

    vLLM computes the slots of draft tokens as if every rank had whole contexts, so a slot only says
    whether the token is cached at all.

    Args:
        shard: which tokens lie here.
        request: ``[T]`` integer, the request of every token.
        position: ``[T]`` integer, its index within the request; negative for padding.
        block_table: ``[R, nb]`` integer, this rank's blocks of every request.
        slots: ``[T]`` integer; negative for a token that is cached nowhere, or not here.
        page: rows of a block.
    """
    row = shard.row(position.long())
    column = torch.div(row.clamp(min=0), page, rounding_mode="floor")
    # A draft token may pass the end of the table, where it is cached nowhere.
    found = block_table[request.long(), column.clamp(max=block_table.shape[1] - 1)].long()
    block = torch.where((row >= 0) & (slots >= 0), found, -1)
    return RowIndex(block, torch.where(block >= 0, row - column * page, -1))


def known_lengths(common: CommonAttentionMetadata) -> tuple[list[int], list[int]] | None:
    """Tokens in the step and a bound for the context of every request, if the host knows them."""
    requests = common.num_reqs
    lens = common.seq_lens_cpu_upper_bound
    if lens is None and common.seq_lens.is_cpu:
        lens = common.seq_lens
    if lens is None:
        return None
    query_lens = common.query_start_loc_cpu[: requests + 1].diff()
    return query_lens.tolist(), lens[:requests].tolist()
