"""What the sweep over torch's operators says of one that is equal, empty and refused."""

from __future__ import annotations

from tools.opinfo_sweep import outcomes


def test_outcomes() -> None:
    found = {name: outcome for name, outcome, _ in outcomes(["add", "empty", "tensor_split"])}
    assert found == {"add": "equal", "empty": "nothing to compare", "tensor_split": "refused"}
