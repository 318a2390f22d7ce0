"""``ascend-ops list``: the operators and their implementations."""

from __future__ import annotations

import argparse
import importlib.util
import json
from typing import Any

from ascend_ops_core.cases import cases_of
from ascend_ops_core.devices import FAMILIES, facts_of
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import Operator, find, operators

PACKAGES = ("ascend_ops_core", "ascend_fused_moe", "ascend_attention", "ascend_specdec")
"""Import names of the packages that declare operators."""


def add_to(tasks: Any) -> None:
    """Add the task to the command line."""
    task: argparse.ArgumentParser = tasks.add_parser(
        "list",
        help="the operators, and what would run on which device family",
        description="List the operators of the installed packages. With an operator's name: for "
        "each of its cases, which implementation a device family would run and why not another.",
    )
    task.add_argument("operator", nargs="?", help="package::name, or a name of ascend_ops_core")
    task.add_argument("--device", choices=sorted(FAMILIES), help="only this device family")
    task.add_argument("--json", action="store_true", help="machine-readable")
    task.set_defaults(func=run)


def run(options: argparse.Namespace) -> int:
    """Print what was asked for."""
    if options.operator is None:
        rows = [_summary(operator) for operator in _installed()]
        if options.json:
            print(json.dumps(rows, indent=2))
            return 0
        width = max(len(row["operator"]) for row in rows)
        for row in rows:
            print(f"{row['operator']:<{width}}  {','.join(row['npu']):<16}  {row['description']}")
        print(f"\n{len(rows)} operators. NPU implementations were not run on hardware.")
        return 0
    name = options.operator if "::" in options.operator else f"ascend_ops_core::{options.operator}"
    families = [options.device] if options.device else sorted(FAMILIES)
    operator = find(name)
    choices = [choice for family in families for choice in _choices(operator, family)]
    if options.json:
        print(json.dumps(_summary(operator) | {"choices": choices}, indent=2))
        return 0
    print(f"{operator.namespace}::{operator.schema}\n{operator.description}\n")
    for choice in choices:
        refused = "".join(f"\n      not {name}: {why}" for name, why in choice["refused"].items())
        chosen = choice["implementation"] or "none"
        print(f"  {choice['device']:<4} {choice['case']:<24} {chosen}{refused}")
    print("\nNot run on hardware.")
    return 0


def _installed() -> list[Operator]:
    found = [name for name in PACKAGES if importlib.util.find_spec(name) is not None]
    return [operator for name in found for operator in operators(name)]


def _summary(operator: Operator) -> dict[str, Any]:
    return {
        "operator": operator.qualified_name,
        "schema": operator.schema,
        "description": operator.description,
        "npu": list(operator.npu),
    }


def _choices(operator: Operator, family: str) -> list[dict[str, Any]]:
    found = []
    for case in cases_of(operator):
        row: dict[str, Any] = {"device": family, "case": case.name}
        try:
            choice = operator.choose(facts_of(family), *case.arguments("meta"))
            row |= {"implementation": choice.implementation, "refused": dict(choice.refused)}
        except InvalidInputError as error:
            row |= {"implementation": None, "refused": {"all": error.limit}}
        found.append(row)
    return found
