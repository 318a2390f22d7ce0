"""Weights in huge pages: in place, with their values, and nothing where the system has none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ascend_ops_core import huge_pages
from ascend_ops_core.huge_pages import move_to_huge_pages

MEGABYTES = 1 << 18


def huge_kilobytes(tensor: torch.Tensor) -> int:
    """Kilobytes of huge pages in the mapping that the middle of a tensor lies in."""
    # Its ends may lie in pages that others share, which are mappings of their own.
    middle = tensor.data_ptr() + tensor.nbytes // 2
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            start, end = (int(part, 16) for part in first.split("-"))
            inside = start <= middle < end
        elif inside and first == "AnonHugePages:":
            return int(line.split()[1])
    raise AssertionError("no mapping holds the tensor")


def test_tensors_keep_their_place_and_values() -> None:
    large, small = torch.arange(16.0 * MEGABYTES), torch.arange(8.0)
    before, place, small_before = large.clone(), large.data_ptr(), small.clone()
    moved = move_to_huge_pages([large, large[5:], small])
    assert large.data_ptr() == place
    assert torch.equal(large, before)
    assert torch.equal(small, small_before)
    if not moved:
        pytest.skip("this kernel moves nothing to huge pages")
    # What is left over lies in front of the first and behind the last whole page.
    assert 12 << 20 <= moved <= 16 << 20
    assert huge_kilobytes(large) * 1024 >= moved


def test_a_system_without_huge_pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huge_pages, "_SIZE_FILE", tmp_path / "absent")
    assert move_to_huge_pages([torch.zeros(16 * MEGABYTES)]) == 0


def test_nothing_and_small_tensors() -> None:
    assert move_to_huge_pages([]) == 0
    assert move_to_huge_pages([torch.zeros(3), torch.zeros(0), torch.zeros(2, device="meta")]) == 0
