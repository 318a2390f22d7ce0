"""docs/compile-baseline.md: what is worse is bold, and both files name the same kernels."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from tools.baseline_inputs import Passes
from tools.baseline_page import PAGE, THEIRS, Figures, Row, render, summed, their_figures, together
from tools.baseline_work import ROWS

COUNTS = {
    "ub_bits": 8 * 1024 * 40,
    "vector": 20,
    "cube": 1,
    "weighted_scalar": 8,
    "gm_load_bytes": 4096,
    "gm_store_bytes": 2048,
    "flags": 3,
    "barriers": 4,
    "block_syncs": 1,
}


def _row(ours: Figures, remark: str = "") -> Row:
    theirs = Figures(10.0, 4.0, 6.0, 2.0, 0.0)
    return Row("theirs", "_ours", "a sum", "token", 0.5, False, (theirs, ours), remark)


def test_figures_are_for_a_unit() -> None:
    assert their_figures(COUNTS, 4.0) == Figures(10.0, 5.25, 1.5, 2.0, 2.0)
    assert their_figures(COUNTS, None) == Figures(40 / 6, 3.5, 1.0, 8 / 6, 8 / 6)


def test_weighted_counts_go_before() -> None:
    weighted = {"weighted_vector": 39, "weighted_sync": 80, "weighted_gm_load_bytes": 1024}
    row = COUNTS | weighted | {"weighted_gm_store_bytes": 0}
    assert their_figures(row, 1.0) == Figures(40.0, 40.0, 1.0, 80.0, 8.0)


def test_kernels_behind_each_other_share_the_buffer() -> None:
    parts = Figures(10.0, 4.0, 6.0, 2.0, 0.0), Figures(12.0, 1.0, 2.0, 3.0, 4.0)
    assert summed(*parts) == Figures(12.0, 5.0, 8.0, 5.0, 4.0)


def test_bytes_beside_a_loop_that_passes_often_count_once() -> None:
    passes = Passes("_ours", 2.0, held=1.0, less=1024.0)
    counted = together([(Figures(10.0, 4.0, 6.0, 2.0, 1.0), passes)], 4.0)
    assert counted == Figures(2.5, 2.0, 11 / 4, 1.0, 0.5)


def test_another_family_has_a_table_of_its_own() -> None:
    rows = [_row(Figures(1.0, 1.0, 1.0, 1.0, 0.0)), _row(Figures(2.0, 2.0, 2.0, 2.0, 0.0), "so")]
    page = render("head\n\n", [rows[0], replace(rows[1], family="A5")])
    first, second = page.split("## On A5")
    assert "10 : 1 (0.10)" in first
    assert "10 : 2 (0.20)" in second
    assert "a sum (a)" in second


def test_what_is_worse_is_bold() -> None:
    page = render("", [_row(Figures(11.0, 4.01, 6.0, 1.0, 1.0), "it has to")])
    (line,) = [one for one in page.splitlines() if "_ours" in one]
    assert "10 : 11 (**1.10**)" in line
    assert "4 : 4.01 (1.00)" in line
    assert "2 : 1 (0.50)" in line
    assert "**0 : 1**" in line
    assert "a sum (a)" in line
    assert "- (a) it has to." in page


def test_both_files_and_the_page_name_the_same_kernels() -> None:
    names = [row["kernel"] for row in json.loads(THEIRS.read_text())["rows"]]
    assert names == [work.theirs for work in ROWS]
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert [line.split("`")[1] for line in lines] == names


def test_no_figure_of_the_page_is_worse_and_every_mark_is_explained() -> None:
    text = PAGE.read_text()
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    assert not [line for line in lines if "**" in line]
    marks = {mark for line in lines for mark in re.findall(r" \(([a-z])\) \|", line)}
    assert marks
    assert all(f"\n- ({mark}) " in text for mark in marks)
