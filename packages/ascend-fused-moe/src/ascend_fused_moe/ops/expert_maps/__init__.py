"""From logical experts to the places of their replicas, and how often each place is chosen.

A logical expert may have several replicas, each in a place of its own. Which one a token takes is
read from a table that repeats along the tokens (see
:func:`ascend_fused_moe.eplb.build_expert_replica_routing_table`), so that replicas share the load
without a random number, and equal inputs take equal ways.

torch_npu's ``npu_moe_update_expert`` maps by another table and records nothing; it is not used.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import INDICES, require_at_least, require_dtype, require_shape
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

__all__ = ["map_to_physical", "map_to_physical_and_record"]

_MAX_PAIRS = 2**31


def map_to_physical(ids: torch.Tensor, table: torch.Tensor, *, offset: int = 0) -> torch.Tensor:
    """:func:`map_to_physical_and_record` without a record."""
    return map_to_physical_and_record(ids, table, offset=offset)


def map_to_physical_and_record(
    ids: torch.Tensor,
    table: torch.Tensor,
    load: torch.Tensor | None = None,
    num_unpadded_tokens: torch.Tensor | None = None,
    *,
    offset: int = 0,
) -> torch.Tensor:
    """``table[ids[t, j], (t + offset) % period]``, each place counted.

    Args:
        ids: ``[T, k]`` int32 or int64; ``T`` may be 0. An id outside ``[0, L)`` is no choice: it
            becomes -1 and is not counted.
        table: ``[L, period]`` int32: places below ``P``. A place of -1 is passed on, not counted.
        load: ``[P]`` int32; counts are added to it. None records nothing.
        num_unpadded_tokens: ``[1]`` int32 or int64, on the device: rows from here on are padding,
            which is mapped but not counted. None counts all rows.
        offset: where in the table's period the first token stands, 0 or more; ranks that start at
            different offsets share replicas among each other.

    Returns:
        ``[T, k]`` in ``ids.dtype``: the physical ids.

    Raises:
        InvalidInputError: another shape or dtype, or a negative offset; on a CPU also a place
            that ``load`` does not have.
    """
    require_shape("ids", ids, None, None)
    require_dtype("ids", ids, INDICES)
    require_shape("table", table, None, None)
    require_dtype("table", table, (torch.int32,))
    require_at_least("experts of the table", table.shape[0], 1)
    require_at_least("period of the table", table.shape[1], 1)
    require_at_least("offset", offset, 0)
    if ids.numel() >= _MAX_PAIRS:
        raise InvalidInputError(
            f"{ids.numel()} ids", "they are counted in 31 bits", "Split the tokens."
        )
    if load is not None:
        require_shape("load", load, None)
        require_dtype("load", load, (torch.int32,))
        looks = load.device.type == "cpu" and not torch.compiler.is_compiling()
        if looks and int(table.max()) >= load.shape[0]:
            raise InvalidInputError(
                f"place {int(table.max())} in the table",
                f"load has {load.shape[0]} places",
                "Pass one counter for each place of all ranks.",
            )
    if num_unpadded_tokens is not None:
        require_shape("num_unpadded_tokens", num_unpadded_tokens, 1)
        require_dtype("num_unpadded_tokens", num_unpadded_tokens, INDICES)
    result: torch.Tensor = _MAP_TO_PHYSICAL_AND_RECORD(
        ids, table, load, num_unpadded_tokens, offset
    )
    return result


_MAP_TO_PHYSICAL_AND_RECORD = declare(
    __name__,
    "map_to_physical_and_record(Tensor ids, Tensor table, Tensor(a!)? load,"
    " Tensor? num_unpadded_tokens, int offset) -> Tensor",
    npu=("triton", "torch"),
    fake=lambda ids, *others: torch.empty(ids.shape, dtype=ids.dtype, device=ids.device),
)
