"""docs/kernels.md is made from the compile ledgers, and is up to date."""

from __future__ import annotations

from typing import Any

from tools.kernels_page import main, render


def result(family: str, problem: str = "", **figures: Any) -> dict[str, Any]:
    counts = {"weighted_vector": 8, "gm_load_bytes": 4096} | figures.pop("counts", {})
    known = {"mix_mode": "aiv", "ub_percent": 7.5, "counts": None if problem else counts}
    return {"kernel": "_norm_kernel", "family": family, "problem": problem} | known | figures


def test_a_line_spans_the_configurations_of_a_family() -> None:
    results = [
        result("A2"),
        result("A2", ub_percent=61.0, counts={"weighted_vector": 12000, "weighted_scalar": 3}),
        result("A3", ub_percent=61.0, counts={"weighted_vector": 12000, "weighted_scalar": 3}),
        result("A3"),
        result("A5", mix_mode="mix", counts={"cube": 2}),
        result("A5", "ub_overflow after stage hivm", ub_percent=120.0),
    ]
    page = render(
        [("ascend-ops-core", {"compiler": "one 1.0", "results": dict(enumerate(results))})]
    )
    rows = [line for line in page.splitlines() if line.startswith("| `norm`")]
    assert rows == [
        "| `norm` | A2, A3 | 2 | vector | 7.5 to 61 | 8 to 12,000 | 0 | 4,096 | 0 | 0 | 0 "
        "| 0 to 3 |",
        "| `norm` | A5 | 2, 1 not compiled | both | 7.5 | 8 | 2 | 4,096 | 0 | 0 | 0 | 0 |",
    ]
    assert "1 kernels, 6 configurations, of which 5 compiled as written" in page
    assert "Nothing here ran on hardware" in page


def test_the_page_says_what_the_ledgers_say() -> None:
    assert main(["--check"]) == 0, "run ./tools/dev run -- python tools/kernels_page.py"
