"""Renders docs/npu-calls.md: what the engines on the simulated NPU called of torch_npu.

./tools/dev engine-npu                                      # leaves the records, checks the page
./tools/dev run -- python tools/npu_calls_page.py           # writes the page from them
./tools/dev run -- python tools/npu_calls_page.py --check   # fails if the page is another
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.workspace import ROOT

PAGE = ROOT / "docs" / "npu-calls.md"
RECORDS = ROOT / ".cache" / "proofs" / "engine-npu-calls.json"

_HEAD = """# Calls of torch_npu in the engine

**Not run on hardware.** DeepSeek models, Llama, Qwen3 and Mistral ran in the real engine on the
simulated NPU (session `engine-npu`), as A2, A3 and A5. Every call of torch_npu {wheel} was held
against its schema, and against the wheel's own meta kernel where it has one; a call that does not
fit is an error. This page is generated from the session's records by `tools/npu_calls_page.py`; the
session fails when it is stale.

## Calls

| operator | families | dtypes | checked by |
|---|---|---|---|
"""

_CHOICES = """
## What operators ran as, and the limits that decided it

`torch` is the definition, in torch's own operators. A limit names what torch_npu documents and what
the engine asked for; the next implementation ran instead. The same choices without an engine:
`ascend-ops list OPERATOR`.

| operator | family | ran as | limits met |
|---|---|---|---|
"""

_SCHEMAS = """
## Schemas

"""


def render(report: dict[str, Any]) -> str:
    """Return the page for what the session's engines reported."""
    lines = [_HEAD.format(wheel=report["wheel"])]
    for name, call in sorted(report["torch_npu"].items()):
        dtypes = "; ".join(
            f"{argument} {', '.join(found)}" for argument, found in sorted(call["dtypes"].items())
        )
        checked = "schema, meta kernel" if call["meta_kernel"] else "schema"
        lines.append(f"| `{name}` | {', '.join(call['families'])} | {dtypes} | {checked} |\n")
    lines.append(_CHOICES)
    for name, families in sorted(report["operators"].items()):
        by_choice: dict[str, list[str]] = {}
        for family, choice in sorted(families.items()):
            by_choice.setdefault(_choice(choice), []).append(family)
        for shown, names in by_choice.items():
            lines.append(f"| `{name}` | {', '.join(names)} | {shown} |\n")
    lines.append(_SCHEMAS)
    lines += [f"- `{call['schema']}`\n" for _, call in sorted(report["torch_npu"].items())]
    return "".join(lines)


def _choice(choice: dict[str, Any]) -> str:
    limits = [
        f"{implementation}: {reason}"
        for implementation, reasons in sorted(choice["refused"].items())
        for reason in sorted(reasons)
    ]
    return f"{', '.join(choice['runs_as'])} | {'; '.join(limits) or '-'}"


def main(arguments: list[str]) -> int:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--check", action="store_true", help="write nothing, fail if stale")
    check = options.parse_args(arguments).check
    if not RECORDS.exists():
        print("No records: run ./tools/dev engine-npu first.", file=sys.stderr)
        return 1
    page = render(json.loads(RECORDS.read_text()))
    if not check:
        PAGE.write_text(page)
        print(f"{PAGE.relative_to(ROOT)}: written")
        return 0
    if not PAGE.exists() or PAGE.read_text() != page:
        print(
            f"{PAGE.relative_to(ROOT)} is stale: ./tools/dev run -- python tools/npu_calls_page.py",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
