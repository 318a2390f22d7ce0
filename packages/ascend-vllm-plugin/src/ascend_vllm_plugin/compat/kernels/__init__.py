"""Puts our functions in the places where vLLM's V1 runner launches Triton kernels of its own.

vLLM's kernels are written and tuned for CUDA. On an NPU the slots of a step's tokens come from
:mod:`ascend_ops_core.ops.slot_mapping`, drafts are verified by
:mod:`ascend_specdec.ops.verification`, and what a draft model needs comes from
:mod:`ascend_specdec.ops.draft_inputs`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from ascend_ops_core.ops.slot_mapping import PADDING_SLOT, compute_slot_mapping
from ascend_specdec.vllm import kernels as verification_kernels
from ascend_specdec.vllm.kernels import Kernel

from ascend_vllm_plugin.compat.kernels import draft


def slot_mapping(
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_table_stride: int,
    block_size: int,
    slots: torch.Tensor,
    *,
    TOTAL_CP_WORLD_SIZE: int = 1,
    TOTAL_CP_RANK: int = 0,
    CP_KV_CACHE_INTERLEAVE_SIZE: int = 1,
    PAD_ID: int = PADDING_SLOT,
    **unused: Any,
) -> None:
    """``vllm.v1.worker.block_table._compute_slot_mapping_kernel``.

    Args:
        num_tokens: ``T``.
        max_num_tokens: length of ``slots``.
        query_start_loc: ``[R + 1]`` int32.
        positions: ``[T]``.
        block_table: at least ``[R, blocks]`` int32.
        block_table_stride: not needed.
        block_size: tokens per block.
        slots: overwritten; padding behind the tokens.
        TOTAL_CP_WORLD_SIZE: ranks of context parallelism.
        TOTAL_CP_RANK: this one.
        CP_KV_CACHE_INTERLEAVE_SIZE: consecutive tokens on one of them.
        PAD_ID: slot of padding.
        unused: constants of the Triton kernel.
    """
    assert PAD_ID == PADDING_SLOT
    compute_slot_mapping(
        slots,
        query_start_loc,
        positions,
        block_table,
        block_size,
        ranks=TOTAL_CP_WORLD_SIZE,
        rank=TOTAL_CP_RANK,
        interleave=CP_KV_CACHE_INTERLEAVE_SIZE,
    )


REPLACED: dict[tuple[str, str], Callable[..., None]] = {
    ("vllm.v1.worker.block_table", "_compute_slot_mapping_kernel"): slot_mapping,
    (
        "vllm.v1.spec_decode.utils",
        "eagle_step_slot_mapping_metadata_kernel",
    ): draft.step_slot_mapping,
    (
        "vllm.v1.spec_decode.llm_base_proposer",
        "eagle_prepare_inputs_padded_kernel",
    ): draft.prepare_inputs_padded,
    (
        "vllm.v1.spec_decode.llm_base_proposer",
        "eagle_prepare_next_token_padded_kernel",
    ): draft.prepare_next_token_padded,
    **{
        ("vllm.v1.sample.rejection_sampler", name): function
        for name, function in verification_kernels.REPLACED.items()
    },
}
"""Module and name of vLLM's kernel, and what runs in its place."""


def replace_kernels() -> None:
    """Replace them for this process; may be called repeatedly.

    Raises:
        AttributeError: vLLM has no kernel of that name in that module any more.
    """
    for (module, name), function in REPLACED.items():
        place = importlib.import_module(module)
        getattr(place, name)
        setattr(place, name, Kernel(function))
