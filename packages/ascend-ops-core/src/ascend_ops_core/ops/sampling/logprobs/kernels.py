"""The ids whose log-probabilities are wanted, in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import block_of, next_power_of_two

# Ids as they were loaded and as int64, a byte of validity.
_LIVE_BYTES = 24


@triton.jit
def _logprob_token_ids_kernel(
    sampled_ptr,
    top_ptr,
    requests_ptr,
    custom_counts_ptr,
    custom_ptr,
    ids_ptr,
    valid_ptr,
    top_stride,
    custom_stride,
    top_columns,
    columns,
    programs,
    BLOCK: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        ids_row = ids_ptr + as_int64(unit) * (columns + 1)
        valid_row = valid_ptr + as_int64(unit) * (columns + 1)
        tl.store(ids_row, tl.load(sampled_ptr + unit).to(tl.int64))
        tl.store(valid_row, 1)
        request = tl.load(requests_ptr + unit).to(tl.int32)
        custom = tl.load(custom_counts_ptr + request).to(tl.int32)
        for start in range(0, columns, BLOCK):
            inside = lanes < columns - start
            if custom > 0:
                ids = tl.load(
                    custom_ptr + as_int64(request) * custom_stride + start + lanes,
                    mask=lanes < custom - start,
                    other=0,
                ).to(tl.int64)
                tl.store(ids_row + 1 + start + lanes, ids, mask=inside)
            else:
                ids = tl.load(
                    top_ptr + as_int64(unit) * top_stride + start + lanes,
                    mask=lanes < top_columns - start,
                    other=0,
                ).to(tl.int64)
                tl.store(ids_row + 1 + start + lanes, ids, mask=inside)
            wanted = tl.where(custom > 0, custom, top_columns) - start
            valid = tl.where(lanes < wanted, 1.0, 0.0)
            tl.store(valid_row + 1 + start + lanes, valid.to(tl.int8), mask=inside)


def logprob_token_ids(
    sampled: torch.Tensor,
    top_ids: torch.Tensor | None,
    requests: torch.Tensor,
    custom_counts: torch.Tensor,
    custom_ids: torch.Tensor,
    columns: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.sampling.logprob_token_ids`."""
    rows = sampled.shape[0]
    ids = torch.empty((rows, 1 + columns), dtype=torch.int64, device=sampled.device)
    valid = torch.empty((rows, 1 + columns), dtype=torch.bool, device=sampled.device)
    custom_ids = custom_ids if custom_ids.stride(1) == 1 else custom_ids.contiguous()
    top = custom_ids if top_ids is None else top_ids
    top = top if top.stride(1) == 1 else top.contiguous()
    block = block_of(
        current_facts(), streamed=17, local=_LIVE_BYTES, maximum=next_power_of_two(columns)
    )
    arguments = {
        "sampled_ptr": sampled.contiguous(),
        "top_ptr": top,
        "requests_ptr": requests.contiguous(),
        "custom_counts_ptr": custom_counts.contiguous(),
        "custom_ptr": custom_ids,
        "ids_ptr": ids,
        "valid_ptr": valid.view(torch.int8),
        "top_stride": top.stride(0),
        "custom_stride": custom_ids.stride(0),
        "top_columns": 0 if top_ids is None else top_ids.shape[1],
        "columns": columns,
        "programs": rows,
    }
    launch(_logprob_token_ids_kernel, rows, arguments, {"BLOCK": block})
    return ids, valid
