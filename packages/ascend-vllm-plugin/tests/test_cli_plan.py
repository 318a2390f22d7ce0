"""`ascend-vllm plan`: options, exit codes, text, JSON and pictures."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from ascend_vllm_plugin.cli.app import app
from ascend_vllm_plugin.planning.request import DEVICES
from ascend_vllm_plugin.planning.weights import WeightFormat
from typer.testing import CliRunner, Result

DATA = Path(__file__).parent / "data"
FLASH = str(DATA / "deepseek_v4_flash.json")
PRO = str(DATA / "deepseek_v4_pro.json")
A2 = ["--device", "A2", "--cards", "8", "--ep", "8"]


def run(*arguments: str, **environ: str) -> Result:
    return CliRunner(env={"COLUMNS": "200", **environ}).invoke(app, ["plan", *arguments])


def as_json(*arguments: str) -> dict[str, Any]:
    return json.loads(run(*arguments, "--json").stdout)


def test_what_fits_ends_with_0_and_says_how_far_it_goes() -> None:
    result = run("--model", FLASH, *A2)
    assert result.exit_code == 0, result.output
    for text in (
        "284.3 billion parameters",
        "routed experts",
        "compressed_cache",
        "index_state_cache",
        "estimated, not measured",
        "A prefix is reused in units of 256 tokens",
        "not run on hardware",
        "fits; the largest context is 1048576 tokens",
    ):
        assert text in result.output


def test_captured_steps_are_listed_and_take_memory() -> None:
    usual = as_json("--model", FLASH, *A2)
    assert usual["graphs"]["sizes"][0] == 1
    assert usual["graphs"]["sizes"][-1] == 128
    few = as_json("--model", FLASH, *A2, "--capture-sizes", "8, 2,300,4")
    assert few["graphs"]["sizes"] == [2, 4, 8]
    sizes = [{p["name"]: p for p in r["card"]["segments"]}["graphs"] for r in (usual, few)]
    assert sizes[0]["bytes"] > sizes[1]["bytes"] > 2 * 1024**2
    shown = run("--model", FLASH, *A2, "--capture-sizes", "2,4,8").output
    assert "padded to 2, 4, 8 tokens" in shown
    many = ",".join(map(str, range(1, 1001)))
    dense = run("--model", FLASH, *A2, "--max-num-seqs", "1000", "--capture-sizes", many)
    assert "1000 captured sizes of 4 streams each exceed the budget" in dense.output
    assert not as_json("--model", FLASH, *A2, "--no-graphs")["graphs"]["sizes"]
    assert run("--model", FLASH, *A2, "--capture-sizes", "1,x").exit_code == 2


def test_what_does_not_fit_ends_with_1_and_names_the_largest_context() -> None:
    asked = ("--model", FLASH, *A2, "--weight-format", "w8a8", "--concurrency", "5")
    result = run(*asked)
    assert result.exit_code == 1
    report = as_json(*asked)
    longest = report["longest_context"]
    assert 0 < longest < 1048576
    assert f"the largest context that fits is {longest} tokens" in result.output
    assert f"Lower --max-model-len to {longest}" in report["refusal"]["remedy"]
    shorter = run(*asked, "--max-model-len", str(longest))
    assert shorter.exit_code == 0


def test_json_holds_the_whole_plan() -> None:
    report = as_json("--model", FLASH, *A2, "-k", "1")
    parts = {part["name"]: part for part in report["card"]["segments"]}
    assert {"embedding", "routed experts", "MTP draft", "activations", "caches"} <= set(parts)
    assert sum(part["bytes"] for part in parts.values()) == report["card"]["memory"]
    assert all(part["how"] for part in parts.values())
    assert len({cache["role"] for cache in report["caches"]}) == 5
    pool = report["pool"]
    assert pool["num_blocks"] == parts["caches"]["bytes"] // pool["block_bytes"]
    assert pool["blocks_needed"] == sum(group["blocks_per_request"] for group in pool["groups"])
    assert report["fits"]
    assert report["refusal"] is None
    assert report["prefix"] == {"cached": True, "unit": 256, "smallest_shared": 320}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--device", "A9"], "known are"),
        (["--device", "A5"], "--memory-gib"),
        (["--device", "A2", "--cards", "8", "--tp", "3"], "tp=3 x dp=1 makes 3"),
        (["--device", "A2", "--cards", "9", "--dp", "2"], "cannot share them evenly"),
        (["--device", "A2", "--cards", "12"], "it must divide num_attention_heads=64"),
        (["--device", "A2", "--cards", "8", "--ep", "2"], "Use ep=1 or ep=8"),
        (["--device", "A2", "--kv-dtype", "float32"], "Leave it at auto"),
        (["--device", "A2", "--memory-gib", "nan"], "it is a size in GiB"),
        (["--device", "A2", "--memory-gib", "-1"], "memory_bytes="),
        (["--device", "A2", "--gpu-memory-utilization", "nan"], "a share of the card's memory"),
        (["--device", "A2", "--picture", "plan.gif"], "pictures are .svg or .png"),
        (["--device", "A2", "--picture", "absent/plan.svg"], "there is no folder"),
    ],
)
def test_what_makes_no_sense_ends_with_2(arguments: list[str], text: str) -> None:
    result = run("--model", FLASH, *arguments)
    assert result.exit_code == 2
    assert text in " ".join(result.output.split())


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    result = run("--model", str(tmp_path), "--device", "A2")
    assert result.exit_code == 2
    assert "no config.json" in result.output


@pytest.mark.parametrize("model", [FLASH, PRO])
def test_picture_is_a_bar_of_the_whole_card(tmp_path: Path, model: str) -> None:
    file = tmp_path / "plan.svg"
    run("--model", model, *A2, "--picture", str(file))
    root = ElementTree.fromstring(file.read_text())
    space = "{http://www.w3.org/2000/svg}"
    bars = [bar for bar in root.iter(f"{space}rect") if bar.find(f"{space}title") is not None]
    report = as_json("--model", model, *A2)
    sizes = [part["bytes"] for part in report["card"]["segments"]]
    widths = [float(bar.get("width", 0)) for bar in bars]
    assert len(bars) == len(sizes)
    for width, size in zip(widths, sizes, strict=True):
        assert width / sum(widths) == pytest.approx(size / sum(sizes), abs=1e-4)
    edges = [float(bar.get("x", 0)) for bar in bars]
    for left, width, right in zip(edges, widths, edges[1:], strict=False):
        assert left + width == pytest.approx(right, abs=0.02)
    text = "".join(root.itertext())
    assert "not run on hardware" in text
    assert ("does not fit" in text) is not report["fits"]


def test_png_needs_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "plan.png"
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run("--model", FLASH, *A2, "--picture", str(file))
    assert result.exit_code == 2
    assert "pip install matplotlib, or name a .svg file" in result.output
    assert not file.exists()


def test_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "plan.png"
    assert run("--model", FLASH, *A2, "--picture", str(file)).exit_code == 0
    assert file.read_bytes().startswith(b"\x89PNG")


def test_hccl_buffer_comes_from_the_environment() -> None:
    needed = "Set it to"
    small = run("--model", FLASH, *A2, HCCL_BUFFSIZE="1")
    assert needed in " ".join(small.output.split())
    assert needed not in run("--model", FLASH, *A2, "--hccl-buffsize", "999").output
    wrong = run("--model", FLASH, *A2, HCCL_BUFFSIZE="lots")
    assert wrong.exit_code == 2
    assert "Unset HCCL_BUFFSIZE" in wrong.output


def test_help_names_every_device_and_format() -> None:
    text = run("--help").output
    for name in (*DEVICES, *WeightFormat):
        assert name in text
    assert "Nothing is loaded and no NPU is" in " ".join(text.split())


def test_vllm_is_not_imported() -> None:
    code = (
        "import sys; from ascend_vllm_plugin.cli import main\n"
        f"sys.argv = ['ascend-vllm', 'plan', '--model', {FLASH!r}, '--device', 'A2', '--json']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "sys.stderr.write(str('vllm' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.endswith("False")
