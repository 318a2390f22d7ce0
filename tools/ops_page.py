"""Renders docs/ops.md from what the proofs of a test run recorded.

    ./tools/dev operators -- --write    # writes the page
    ./tools/dev operators               # fails if the page in the repository is another

The records are the `*.jsonl` files that the sessions with proofs leave in .cache/proofs.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ascend_ops_core.registry import Operator, operators
from ascend_ops_core.testing.recorder import Record, read

from tools.workspace import ROOT

PAGE = ROOT / "docs" / "ops.md"
RECORDS = ROOT / ".cache" / "proofs"
NAMESPACES = ("ascend_ops_core", "ascend_fused_moe", "ascend_attention", "ascend_specdec")

_HEAD = """# Operators and their proofs

**Not run on hardware.** What follows was shown without an NPU, by the test sessions `tests-*`,
`interpreter`, `compile`, `contract` and `sim`; this page is generated from their records
(`tools/ops_page.py`), and CI fails when it is stale.

- **oracle**: the definition equals something that we did not derive from it.
- **interpreter**: the Triton kernel equals the definition under Triton's interpreter, on memory
  fenced with NaN.
- **compile**: triton-ascend and the open part of Huawei's compiler take the kernel; the share is
  the largest use of the unified buffer over all configurations. The closed back end was not run.
- **contract**: the torch_npu calls fit the schemas and meta kernels of the wheel.
- **sim**: the NPU code path equals the definition on a simulated device.

A dash stands where a proof does not apply: no Triton kernel, or no torch_npu call.
"""

_DASH = "-"


def applicable(operator: Operator) -> dict[str, bool]:
    """Return which proofs an operator owes."""
    return {
        "oracle": True,
        "interpreter": "triton" in operator.npu,
        "compile": "triton" in operator.npu,
        "contract": "torch_npu" in operator.npu,
        "sim": True,
    }


def missing(found: list[Record], known: list[Operator]) -> list[str]:
    """Return the proofs that are owed and were not recorded."""
    shown = {(record.op, record.proof) for record in found}
    return [
        f"{operator.qualified_name}: {proof}"
        for operator in known
        for proof, owed in applicable(operator).items()
        if owed and (operator.qualified_name, proof) not in shown
    ]


def render(found: list[Record], known: list[Operator]) -> str:
    """Return the page."""
    by_proof: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in found:
        by_proof[record.op, record.proof].append(record)
    lines = [_HEAD]
    for namespace in sorted({operator.namespace for operator in known}):
        own = [operator for operator in known if operator.namespace == namespace]
        lines.append(f"\n## {namespace.replace('_', '-')}\n")
        lines.append(f"{len(own)} operators.\n")
        lines.append("| operator | runs as | oracle | interpreter | compile | contract | sim |")
        lines.append("|---|---|---|---|---|---|---|")
        for operator in own:
            name = operator.qualified_name
            cells = [
                _cell(proof, by_proof[name, proof]) if owed else _DASH
                for proof, owed in applicable(operator).items()
            ]
            runs = ", ".join(operator.npu)
            lines.append(f"| `{operator.name}` | {runs} | {' | '.join(cells)} |")
        lines.append("\n### What each one is\n")
        lines.extend(
            f"- `{operator.schema}`: {operator.description.rstrip('.')}." for operator in own
        )
    return "\n".join(lines) + "\n"


def _cell(proof: str, records: list[Record]) -> str:
    if proof == "oracle":
        return "; ".join(sorted({record.detail for record in records}))
    families = ", ".join(sorted({record.family for record in records if record.family}))
    cases = len({record.case for record in records})
    shares = {record.detail for record in records if record.detail}
    if proof == "compile":
        return f"{families}, up to {max(map(_percent, shares)):g} % of UB"
    noun = "case" if cases == 1 else "cases"
    return f"{cases} {noun} on {families}"


def _percent(text: str) -> float:
    return float(text.split()[0])


def main(arguments: list[str]) -> int:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--check", action="store_true", help="write nothing, fail if stale")
    check = options.parse_args(arguments).check
    known = [operator for namespace in NAMESPACES for operator in operators(namespace)]
    found = read(RECORDS)
    gaps = missing(found, known)
    if gaps:
        print("Proofs that are owed and were not shown:", *gaps, sep="\n  ", file=sys.stderr)
        return 1
    page = render(found, known)
    if not check:
        PAGE.write_text(page)
        print(f"{PAGE.relative_to(ROOT)}: {len(known)} operators")
        return 0
    if PAGE.read_text() != page:
        print(
            f"{PAGE.relative_to(ROOT)} is stale: run the sessions with proofs and then "
            "./tools/dev operators -- --write",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
