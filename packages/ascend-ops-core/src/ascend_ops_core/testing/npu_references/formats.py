"""Storage formats, which a CPU does not have."""

from __future__ import annotations

import torch

from ascend_ops_core.testing.npu_references.limits import require
from ascend_ops_core.testing.npu_references.registry import reference

ND = 2
FRACTAL_NZ = 29


@reference("npu_format_cast", documented=())
def npu_format_cast(
    self: torch.Tensor,
    acl_format: int,
    *,
    customize_dtype: int | None = None,
    input_dtype: int | None = None,
) -> torch.Tensor:
    """The same values; the format only orders them in memory, which is not modelled.

    Limits: formats 2 (ND) and 29 (FRACTAL_NZ).

    Assumed: the result is a copy if the format changes; here it always is.
    """
    _known_format("npu_format_cast", acl_format, customize_dtype, input_dtype)
    return self.clone()


@reference("npu_format_cast_.acl_format", documented=())
def npu_format_cast_(
    self: torch.Tensor,
    acl_format: int,
    *,
    customize_dtype: int | None = None,
    input_dtype: int | None = None,
) -> torch.Tensor:
    """In place: the same tensor, unchanged."""
    _known_format("npu_format_cast_", acl_format, customize_dtype, input_dtype)
    return self


def _known_format(
    op: str, acl_format: int, customize_dtype: int | None, input_dtype: int | None
) -> None:
    known = acl_format in (ND, FRACTAL_NZ)
    require(known, op, f"acl_format={acl_format}", "2 (ND) and 29 (FRACTAL_NZ) are modelled")
    plain = customize_dtype is None and input_dtype is None
    require(plain, op, "customize_dtype or input_dtype", "not modelled")
