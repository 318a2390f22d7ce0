"""MC2: dispatch and combine as one torch_npu operator each, and their limits.

The limits are the narrower ones of two public revisions of torch_npu's documentation of
npu_moe_distribute_dispatch_v2 and npu_moe_distribute_combine_v2 (Ascend/op-plugin).

Not run on hardware; checked against torch_npu's schemas.
"""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_FLOATS = (torch.float16, torch.bfloat16)
_RANKS = {"A2": (16, 32, 64), "A3": range(2, 385)}
_ROWS = {"A2": 256, "A3": 512}
_HIDDEN = {"A2": range(32, 7169, 32), "A3": range(1024, 7169)}
_MAX_CHOICES = 16
_MAX_PLACES = 512
_MAX_CAPACITY = {"A2": 24}
_OPS = "MC2's operators"


def distribute_dispatch(
    x: torch.Tensor, ids: torch.Tensor, **arguments: Any
) -> tuple[torch.Tensor, ...]:
    """``npu_moe_distribute_dispatch_v2`` of ``x [N, H]`` and ``ids [N, k]`` int32."""
    found: tuple[torch.Tensor, ...] = torch.ops.npu.npu_moe_distribute_dispatch_v2(
        x=x, expert_ids=ids, **arguments
    )
    return found


def distribute_combine(rows: torch.Tensor, ids: torch.Tensor, **arguments: Any) -> torch.Tensor:
    """``npu_moe_distribute_combine_v2`` of the experts' ``rows``."""
    found: torch.Tensor = torch.ops.npu.npu_moe_distribute_combine_v2(
        expand_x=rows, expert_ids=ids, **arguments
    )
    return found


def supports_mc2(
    facts: DeviceFacts,
    *,
    ranks: int,
    capacity: int,
    rows: int,
    hidden: int,
    top_k: int,
    dtype: torch.dtype,
) -> Support:
    """Whether MC2's operators are documented for a layer and a step.

    Args:
        facts: of the device.
        ranks: that hold the experts.
        capacity: places for experts on each.
        rows: that each dispatches, padding included.
        hidden: ``H``.
        top_k: experts of a row.
        dtype: of the rows.
    """
    family = facts.family
    places = ranks * capacity
    return first_refusal(
        (family in _RANKS, f"{family}, {_OPS} are documented for {', '.join(_RANKS)}"),
        (ranks in _RANKS.get(family, ()), f"{ranks} ranks, {_OPS} take {_said(_RANKS, family)}"),
        (
            rows <= _ROWS.get(family, 0),
            f"{rows} rows on a rank, {_OPS} take {_ROWS.get(family, 0)} on {family}",
        ),
        (
            hidden in _HIDDEN.get(family, ()),
            f"hidden size {hidden}, {_OPS} take {_said(_HIDDEN, family)}",
        ),
        (top_k <= _MAX_CHOICES, f"{top_k} experts of a row, {_OPS} take {_MAX_CHOICES}"),
        (
            places <= _MAX_PLACES,
            f"{places} places for experts, {_OPS} take {_MAX_PLACES}",
        ),
        (
            capacity <= _MAX_CAPACITY.get(family, _MAX_PLACES),
            f"{capacity} experts on a rank, {_OPS} take {_MAX_CAPACITY.get(family)} on {family}",
        ),
        (dtype in _FLOATS, f"rows of {dtype}, {_OPS} take float16 and bfloat16"),
    )


def _said(limits: dict[str, Any], family: str) -> str:
    allowed = limits.get(family, ())
    if isinstance(allowed, range):
        step = f" in steps of {allowed.step}" if allowed.step > 1 else ""
        return f"{allowed[0]} to {allowed[-1]}{step} on {family}"
    return f"{', '.join(str(one) for one in allowed)} on {family}"
