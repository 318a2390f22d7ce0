"""Triton's types of a kernel's run-time arguments."""

from __future__ import annotations

import re
from typing import Any

import torch

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.launch import Launch

_DTYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e5m2: "fp8e5",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint64: "u64",
    torch.uint32: "u32",
    torch.uint16: "u16",
    torch.uint8: "u8",
    torch.bool: "i1",
}

_TYPE = re.compile(rf"\*?(?:{'|'.join(_DTYPES.values())})")


def signature_of(launch: Launch) -> dict[str, str]:
    """Return Triton's type of each run-time argument of a launch that is not None.

    A tensor, which may be on ``meta``, becomes a pointer (``"*bf16"``), an int ``"i32"`` or, beyond
    its range, ``"i64"``, a float ``"fp32"``. Values are not specialised, an int of 1 included.

    Raises:
        InvalidInputError: an argument has no type in Triton.
    """
    return {
        name: _type_of(name, value) for name, value in launch.arguments.items() if value is not None
    }


def constants_of(launch: Launch) -> dict[str, Any]:
    """Return the constants of a launch, run-time arguments that are None included."""
    absent = {name: None for name, value in launch.arguments.items() if value is None}
    return {**absent, **launch.constants}


def checked(signature: dict[str, str]) -> dict[str, str]:
    """Return ``signature`` if every type in it is one of Triton's.

    Raises:
        InvalidInputError: a type is not.
    """
    for name, kind in signature.items():
        if not _TYPE.fullmatch(kind):
            raise InvalidInputError(
                f"type {name}={kind}",
                f"types are {', '.join(_DTYPES.values())}, with * before them for pointers",
                "For example x_ptr=*bf16 n=i32.",
            )
    return signature


def _type_of(name: str, value: Any) -> str:
    if isinstance(value, torch.Tensor) and value.dtype in _DTYPES:
        return f"*{_DTYPES[value.dtype]}"
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    if isinstance(value, float):
        return "fp32"
    what = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
    raise InvalidInputError(
        f"argument {name} of {what}",
        "kernels take tensors of Triton's dtypes, ints, floats and None",
        "Convert it before the launch, or make it a constant.",
    )
