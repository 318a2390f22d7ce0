"""What the session's engines called of torch_npu, and which implementations operators chose."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from ascend_ops_core import registry
from ascend_ops_core.testing.contract import ArgumentFacts, Call, installed


def write(path: Path) -> None:
    """Write the report of this process as JSON.

    ``torch_npu`` holds, by operator: its schema, the number of calls, whether a meta kernel of the
    wheel checked them beside the schema, the device families, and the dtypes of each argument.
    ``operators`` holds, by operator and family: the chosen implementations, and why those preferred
    before them were refused.
    """
    contract = installed()
    assert contract is not None
    by_operator: dict[str, list[Call]] = defaultdict(list)
    for call in contract.calls:
        by_operator[call.op].append(call)
    report = {
        "wheel": contract.version,
        "torch_npu": {name: _summary(calls) for name, calls in sorted(by_operator.items())},
        "operators": _choices(),
    }
    path.write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")


def _summary(calls: list[Call]) -> dict[str, Any]:
    dtypes: dict[str, set[str]] = defaultdict(set)
    for call in calls:
        for name, value in call.arguments.items():
            for one in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(one, ArgumentFacts):
                    dtypes[name].add(str(one.dtype).removeprefix("torch."))
    return {
        "schema": calls[0].schema,
        "calls": len(calls),
        "meta_kernel": all(call.checked for call in calls),
        "families": sorted({call.family for call in calls}),
        "dtypes": {name: sorted(found) for name, found in sorted(dtypes.items())},
    }


def _choices() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, operator in sorted(registry._operators.items()):
        for (family, *_), choice in operator._chosen.items():
            here = found.setdefault(name, {}).setdefault(family, {"runs_as": [], "refused": {}})
            here["runs_as"] = sorted({*here["runs_as"], choice.implementation})
            for implementation, reason in choice.refused:
                reasons = here["refused"].setdefault(implementation, [])
                if reason not in reasons:
                    reasons.append(reason)
    return found
