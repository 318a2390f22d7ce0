"""Checks a local checkpoint by its headers, before the first tensor is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from ascend_ops_core.checkpoint.table import CheckpointError, WeightTable, raise_for

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "BOOL": torch.bool,
    "F4": torch.float4_e2m1fn_x2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}


def read_file(file: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and the format's own name of the dtype of every tensor in one file.

    Raises:
        CheckpointError: the file is damaged, cut short or unreadable.
    """
    # Only who loads a checkpoint has it.
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as tensors:
            parts = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            return {
                n: (tuple(part.get_shape()), str(part.get_dtype())) for n, part in parts.items()
            }
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file.name} cannot be read ({error}): download it again") from error


def known_dtypes(
    found: Mapping[str, tuple[tuple[int, ...], str]],
) -> tuple[dict[str, tuple[tuple[int, ...], torch.dtype]], list[str]]:
    """What :func:`read_file` found with torch's dtypes, and a line for each that torch lacks."""
    known = {
        name: (shape, _DTYPES[dtype]) for name, (shape, dtype) in found.items() if dtype in _DTYPES
    }
    unknown = [
        f"dtype of {name} is {dtype}, which cannot be loaded"
        for name, (_, dtype) in found.items()
        if dtype not in _DTYPES
    ]
    return known, unknown


def read_headers(directory: Path) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of every tensor in a directory's safetensors files, without their data.

    Raises:
        CheckpointError: a file that cannot be read, or dtypes that torch does not have.
    """
    found: dict[str, tuple[tuple[int, ...], str]] = {}
    for file in sorted(directory.glob("*.safetensors")):
        found |= read_file(file)
    known, unknown = known_dtypes(found)
    raise_for(unknown)
    return known


def check_headers(table: WeightTable, source: str) -> None:
    """Refuse a checkpoint that does not fit.

    A source that is no local directory with safetensors files is left to the check that loading
    itself makes.

    Raises:
        CheckpointError: lists every problem.
    """
    directory = Path(source)
    if directory.is_dir() and (found := read_headers(directory)):
        raise_for(table.problems(found))
