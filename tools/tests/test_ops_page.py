"""docs/ops.md is made of records, and owes every proof."""

from __future__ import annotations

from ascend_ops_core.registry import find
from ascend_ops_core.testing.recorder import Record

from tools.ops_page import missing, render

OP = "ascend_ops_core::rms_norm"
RECORDS = [
    Record(OP, "oracle", "test_equals_transformers", detail="transformers DeepseekV4RMSNorm"),
    Record(OP, "interpreter", "odd", "A2", "triton"),
    Record(OP, "interpreter", "wide", "A5", "triton"),
    Record(OP, "compile", "odd", "A2", "triton", "7.0 % of the unified buffer"),
    Record(OP, "compile", "wide", "A5", "triton", "61.5 % of the unified buffer"),
    Record(OP, "contract", "same_dtype", "A2", "torch_npu"),
    Record(OP, "sim", "odd", "A3", "triton"),
]


def test_every_proof_is_owed() -> None:
    assert missing(RECORDS, [find(OP)]) == []
    for dropped in ("oracle", "compile", "contract", "sim"):
        left = [record for record in RECORDS if record.proof != dropped]
        assert missing(left, [find(OP)]) == [f"{OP}: {dropped}"]


def test_a_row_says_what_was_shown() -> None:
    page = render(RECORDS, [find(OP)])
    (row,) = [line for line in page.splitlines() if line.startswith("| `rms_norm`")]
    assert row == (
        "| `rms_norm` | torch_npu, triton | transformers DeepseekV4RMSNorm | 2 cases on A2, A5 "
        "| A2, A5, up to 61.5 % of UB | 1 case on A2 | 1 case on A3 |"
    )
    assert "Not run on hardware" in page
    assert "rms_norm(Tensor x, Tensor? weight, float eps) -> Tensor" in page
