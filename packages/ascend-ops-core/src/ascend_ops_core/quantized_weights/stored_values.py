"""From a checkpoint's tensors to those that a model holds, and what their values must not be."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ascend_ops_core.quantized_weights.formats import Role, StoredTensor, WeightFormat

__all__ = ["converter", "value_problem"]

_NAN_CODE = 255


def converter(stored: StoredTensor, form: WeightFormat) -> Callable[[torch.Tensor], torch.Tensor]:
    """What turns a tensor of the checkpoint into the model's form, without changing a value.

    Values and powers of two are looked at as bytes, never converted as numbers.
    """
    if stored.role is Role.VALUES:
        return _columns_in_pairs if stored.row_pairs else lambda x: x.view(form.codes.dtype)
    if stored.role is Role.DEQUANTIZATION_SCALE:
        return _dequantization_scale
    if stored.role is Role.SCALE:
        return _bytes if form.powers else _matrix
    if stored.role is Role.INPUT_SCALE:
        return lambda x: x.reshape(1).float()
    return lambda x: x


def value_problem(stored: StoredTensor, tensor: torch.Tensor) -> str | None:
    """Why a checkpoint with such values cannot be served; None if it can.

    Scales that are no numbers would make whole blocks NaN; offsets would be left out.

    Args:
        stored: which tensor it is.
        tensor: as the checkpoint has it.
    """
    if stored.role is Role.ZERO:
        count = int(tensor.count_nonzero())
        return (
            f"{count} value(s) are not 0: weights with offsets cannot be loaded" if count else None
        )
    if stored.role not in (Role.SCALE, Role.DEQUANTIZATION_SCALE, Role.INPUT_SCALE):
        return None
    if tensor.dtype in (torch.float8_e8m0fnu, torch.uint8):
        count = int((tensor.view(torch.uint8) == _NAN_CODE).sum())
        return f"{count} scale(s) are NaN (code 255)" if count else None
    values = _dequantization_scale(tensor) if tensor.dtype == torch.int64 else tensor.float()
    count = int((~values.isfinite() | (values < 0)).sum())
    return f"{count} scale(s) are negative or no numbers" if count else None


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.uint8)


def _matrix(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return wide if wide.dim() == 2 else wide.reshape(-1, 1)


def _dequantization_scale(x: torch.Tensor) -> torch.Tensor:
    # ModelSlim stores float16 models' scales as 64 bits, of which the low 32 are the float.
    wide = (x & 0xFFFFFFFF).to(torch.int32).view(torch.float32) if x.dtype == torch.int64 else x
    return wide.reshape(-1, 1)


def _columns_in_pairs(x: torch.Tensor) -> torch.Tensor:
    """``[N, K / 2]`` from ``[N / 2, K]``: two rows in a byte become two columns in one."""
    raw = x.view(torch.uint8)
    rows = torch.stack((raw & 0xF, raw >> 4), dim=1).flatten(0, 1)
    return rows[:, 0::2] | (rows[:, 1::2] << 4)
