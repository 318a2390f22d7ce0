"""`ascend-vllm ops` says what `ascend-ops list` knows, for all operators at once."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from ascend_ops_core.cases import cases_of
from ascend_ops_core.devices import FAMILIES, facts_of
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import find
from ascend_vllm_plugin.cli import ops as ops_module
from ascend_vllm_plugin.cli.app import app
from typer.testing import CliRunner

NAME = "ascend_ops_core::gemma_rms_norm"
RUNNER = CliRunner(env={"COLUMNS": "200"})


def test_one_operator_as_json_is_what_the_registry_chooses() -> None:
    report = json.loads(RUNNER.invoke(app, ["ops", NAME, "--json"]).stdout)
    operator = find(NAME)
    expected = []
    for family in sorted(FAMILIES):
        for case in cases_of(operator):
            try:
                choice = operator.choose(facts_of(family), *case.arguments("meta")).implementation
            except InvalidInputError:
                choice = None
            expected.append((family, case.name, choice))
    found = [(c["device"], c["case"], c["implementation"]) for c in report["choices"]]
    assert found == expected


def test_the_table_counts_and_gives_every_reason() -> None:
    report = json.loads(RUNNER.invoke(app, ["ops", NAME, "--device", "A2", "--json"]).stdout)
    result = RUNNER.invoke(app, ["ops", NAME, "--device", "A2"])
    assert result.exit_code == 0, result.output
    counts = Counter(choice["implementation"] for choice in report["choices"])
    assert len(counts) > 1
    for name, count in counts.items():
        assert f"{name} {count}" in result.output
    reasons = {why for choice in report["choices"] for why in choice["refused"].values()}
    assert reasons
    for why in reasons:
        assert why in result.output
    assert "not run on hardware" in result.output


def test_without_a_name_all_operators_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    listing = ops_module._listing
    names = [row["operator"] for row in listing()]
    assert NAME in names
    asked = []

    def few(*arguments: str) -> object:
        if not arguments:
            return listing()
        asked.append(arguments)
        return listing(NAME, *arguments[1:])

    monkeypatch.setattr(ops_module, "_listing", few)
    result = RUNNER.invoke(app, ["ops", "--device", "A5"])
    assert result.exit_code == 0, result.output
    assert asked == [(name, "--device", "A5") for name in names]


@pytest.mark.parametrize("arguments", [["no_such_operator"], ["--device", "A9"]])
def test_unknown_names_end_with_2(arguments: list[str]) -> None:
    assert RUNNER.invoke(app, ["ops", *arguments]).exit_code == 2
