"""What proofs leave behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from ascend_ops_core.testing.recorder import Record, read, record


def test_records_are_read_back_sorted_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Record("p::a", "sim", "odd", "A2", "triton")
    two = Record("p::a", "oracle", "test_x", detail="brute force")
    for name, records in (("x", [one, two]), ("y", [one])):
        monkeypatch.setenv("ASCEND_PROOFS", str(tmp_path / f"{name}.jsonl"))
        for entry in records:
            record(entry)
    assert read(tmp_path) == [two, one]


def test_without_a_file_nothing_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ASCEND_PROOFS", raising=False)
    monkeypatch.chdir(tmp_path)
    record(Record("p::a", "sim", "odd"))
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_proof_is_an_error() -> None:
    with pytest.raises(ValueError, match="not one of"):
        record(Record("p::a", "hope", "odd"))
