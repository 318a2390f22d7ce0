"""The refusals of documented limits."""

from __future__ import annotations

from collections.abc import Collection

import torch

from ascend_ops_core.devices import chosen_family
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing.contract.install import installed

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (torch.float16, torch.bfloat16, torch.float32)

_REMEDY = "Let the adaptor's supports_...() refuse it."

_DTYPES_BY_CODE = {
    0: torch.uint8,
    1: torch.int8,
    3: torch.int32,
    5: torch.float16,
    6: torch.float32,
    15: torch.bfloat16,
    23: torch.float8_e5m2,
    24: torch.float8_e4m3fn,
    291: torch.float8_e5m2,
    292: torch.float8_e4m3fn,
}
FP4_E2M1 = 296


def family() -> str:
    """Return the device family whose limits hold: the chosen one, else the contract's."""
    contract = installed()
    return chosen_family() or (contract.family if contract is not None else "A3")


def require(holds: bool, op: str, value: str, limit: str) -> None:
    """Refuse a call.

    Args:
        holds: nothing happens if true.
        op: the operator.
        value: what was given, with its name.
        limit: the documented limit.

    Raises:
        InvalidInputError: ``holds`` is false.
    """
    if not holds:
        raise InvalidInputError(f"{op}: {value}", limit, _REMEDY)


def require_dtype(
    op: str, name: str, tensor: torch.Tensor | None, allowed: Collection[torch.dtype]
) -> None:
    """Refuse a tensor of another dtype; None passes."""
    if tensor is not None:
        names = ", ".join(str(one).removeprefix("torch.") for one in allowed)
        require(tensor.dtype in allowed, op, f"{name} of {tensor.dtype}", f"it takes {names}")


def require_rank(op: str, name: str, tensor: torch.Tensor, low: int, high: int) -> None:
    """Refuse a tensor with fewer than ``low`` or more than ``high`` dimensions."""
    require(
        low <= tensor.dim() <= high,
        op,
        f"{name} of {tensor.dim()} dimensions",
        f"it takes {low} to {high}" if low < high else f"it takes {low}",
    )


def require_same(op: str, name: str, tensor: torch.Tensor | None, other: torch.Tensor) -> None:
    """Refuse a tensor whose shape or dtype is not that of ``other``; None passes."""
    if tensor is not None:
        require(
            tensor.shape == other.shape and tensor.dtype == other.dtype,
            op,
            f"{name} {tensor.dtype} {list(tensor.shape)}",
            f"it must be {other.dtype} {list(other.shape)}",
        )


def require_filled(op: str, **tensors: torch.Tensor | None) -> None:
    """Refuse tensors without elements."""
    for name, tensor in tensors.items():
        if tensor is not None:
            require(tensor.numel() > 0, op, f"{name} is empty", "it must have elements")


def require_contiguous(op: str, **tensors: torch.Tensor | None) -> None:
    """Refuse tensors that are not contiguous."""
    for name, tensor in tensors.items():
        if tensor is not None:
            require(tensor.is_contiguous(), op, f"{name} is not contiguous", "it must be")


def require_family(op: str, *families: str) -> None:
    """Refuse another device family than those for which the operator exists."""
    here = family()
    require(here in families, op, f"device family {here}", f"it exists on {', '.join(families)}")


def target_dtype(
    op: str, code: int | None, allowed: Collection[torch.dtype], default: torch.dtype = torch.int8
) -> torch.dtype:
    """Return the dtype that an integer argument stands for.

    Args:
        op: the operator.
        code: torch's or torch_npu's number of the dtype; None means ``default``.
        allowed: dtypes that the operator can produce.
        default: see ``code``.
    """
    found = default if code is None else _DTYPES_BY_CODE.get(code)
    names = ", ".join(str(one).removeprefix("torch.") for one in allowed)
    require(found in allowed, op, f"output dtype {code}", f"modelled are {names}")
    assert found is not None
    return found
