"""docs/npu-calls.md is made of what the engines on the simulated NPU reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import npu_calls_page

CHOICE = {"runs_as": ["torch_npu", "triton"], "refused": {"torch_npu": ["x is empty"]}}
REPORT = {
    "wheel": "2.13.0",
    "torch_npu": {
        "npu_rms_norm": {
            "schema": "npu_rms_norm(Tensor self, Tensor gamma) -> Tensor",
            "calls": 3,
            "meta_kernel": False,
            "families": ["A2", "A3"],
            "dtypes": {"self": ["bfloat16", "float32"], "gamma": ["float32"]},
        }
    },
    "operators": {
        "core::rms_norm": {
            "A2": CHOICE,
            "A3": CHOICE,
            "A5": {"runs_as": ["triton"], "refused": {}},
        }
    },
}


def test_lines_of_the_page() -> None:
    lines = npu_calls_page.render(REPORT).splitlines()
    assert "| `npu_rms_norm` | A2, A3 | gamma float32; self bfloat16, float32 | schema |" in lines
    assert "| `core::rms_norm` | A2, A3 | torch_npu, triton | torch_npu: x is empty |" in lines
    assert "| `core::rms_norm` | A5 | triton | - |" in lines
    assert "- `npu_rms_norm(Tensor self, Tensor gamma) -> Tensor`" in lines


def test_a_stale_page_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npu_calls_page, "ROOT", tmp_path)
    monkeypatch.setattr(npu_calls_page, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(npu_calls_page, "RECORDS", tmp_path / "records.json")
    assert npu_calls_page.main(["--check"]) == 1
    (tmp_path / "records.json").write_text(json.dumps(REPORT))
    assert npu_calls_page.main(["--check"]) == 1
    assert npu_calls_page.main([]) == 0
    assert npu_calls_page.main(["--check"]) == 0
    (tmp_path / "records.json").write_text(json.dumps(REPORT | {"wheel": "2.12.0"}))
    assert npu_calls_page.main(["--check"]) == 1
