"""A local checkpoint is judged by its headers alone."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from ascend_ops_core.checkpoint.headers import check_headers, read_headers
from ascend_ops_core.checkpoint.table import CheckpointError, TensorRule, WeightTable
from safetensors.torch import save_file

TABLE = WeightTable({"a": TensorRule((2, 3), "a"), "b": TensorRule((4,), "b")}, ("mtp.",))


def test_files_are_read_together(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, 3)}, tmp_path / "1.safetensors")
    save_file({"b": torch.zeros(4, dtype=torch.bfloat16)}, tmp_path / "2.safetensors")
    assert read_headers(tmp_path) == {
        "a": ((2, 3), torch.float32),
        "b": ((4,), torch.bfloat16),
    }
    check_headers(TABLE, str(tmp_path))


def test_problems_of_all_files_at_once(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(3, 2)}, tmp_path / "1.safetensors")
    save_file({"c": torch.zeros(4).to(torch.float8_e4m3fn)}, tmp_path / "2.safetensors")
    with pytest.raises(CheckpointError, match=r"3 problem\(s\)") as caught:
        check_headers(TABLE, str(tmp_path))
    for text in ("shape of a is [3, 2], expected [2, 3]", "missing b [4]", "unexpected c [4]"):
        assert text in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e5m2, torch.int8, torch.bool], ids=str)
def test_dtypes(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file({"b": torch.zeros(4).to(dtype)}, tmp_path / "1.safetensors")
    assert read_headers(tmp_path)["b"] == ((4,), dtype)


@pytest.mark.parametrize(("dtype", "count", "size"), [("F4", 4, 2), ("F6_E2M3", 4, 3)])
def test_dtypes_without_a_tensor_in_torch_are_refused_by_name(
    tmp_path: Path, dtype: str, count: int, size: int
) -> None:
    header = json.dumps(
        {"b": {"dtype": dtype, "shape": [count], "data_offsets": [0, size]}}
    ).encode()
    data = struct.pack("<Q", len(header)) + header + bytes(size)
    (tmp_path / "1.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match="dtype of b is"):
        check_headers(TABLE, str(tmp_path))


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, 3)}, tmp_path / "1.safetensors")
    whole = (tmp_path / "1.safetensors").read_bytes()
    (tmp_path / "1.safetensors").write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match=r"1\.safetensors cannot be read"):
        check_headers(TABLE, str(tmp_path))


def test_other_sources_are_left_to_loading(tmp_path: Path) -> None:
    check_headers(TABLE, "org/name-of-a-repository")
    check_headers(TABLE, str(tmp_path))
