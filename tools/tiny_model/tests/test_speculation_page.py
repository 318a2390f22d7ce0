"""The table of trained drafts in docs/speculation.md says what stands beside the checkpoints."""

from __future__ import annotations

import json
from itertools import accumulate
from operator import mul
from pathlib import Path

ROOT = Path(__file__).parents[3]
CHECKPOINTS = ROOT / "tools" / "tiny_model" / "checkpoints"
NAMES = {"llama": "Llama", "qwen3": "Qwen3", "v4": "DeepSeek-V4"}
DRAFTS = {"eagle3": "Eagle3", "medusa": "Medusa", "dflash2": "DFlash2", "dspark": "DSpark"}
MEGABYTE = 1 << 20


def rows() -> list[str]:
    found = []
    for folder in sorted(CHECKPOINTS.iterdir()):
        target, _, draft = folder.name.partition("-")
        if not draft:
            continue
        report = json.loads((folder / "training.json").read_text())
        shares = report.get("accepted_at_each_place")
        shares = shares or list(accumulate(report["agreement"], mul))
        shown = ", ".join(f"{100 * share:.0f}" for share in shares)
        found.append(f"| {NAMES[target]} | {DRAFTS[draft]} | {shown} % |")
    return found


def test_the_table_is_what_was_measured() -> None:
    page = (ROOT / "docs" / "speculation.md").read_text()
    _, _, table = page.partition("| target | draft | by place |\n|---|---|---|\n")
    assert table.partition("\n\n")[0].splitlines() == rows()


def test_checkpoints_are_small() -> None:
    """At most 8 MB each and 40 MB together, the demo's among them."""
    data = ROOT / "packages/ascend-vllm-plugin/src/ascend_vllm_plugin/data"
    sizes = [
        file.stat().st_size for at in (CHECKPOINTS, data) for file in at.rglob("*.safetensors")
    ]
    assert max(sizes) <= 8 * MEGABYTE
    assert sum(sizes) <= 40 * MEGABYTE
