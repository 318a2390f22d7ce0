"""Which torch_npu operators the code of a package calls."""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from ascend_ops_core.errors import InvalidInputError

_NAMESPACE = ["torch", "ops", "npu"]


@dataclass(frozen=True)
class SourceCall:
    """A use of ``torch.ops.npu.<op>`` in a source file.

    Attributes:
        op: operator name, with its overload if one is named; ``.default`` is dropped.
        module: dotted name of the module.
        line: line number.
    """

    op: str
    module: str
    line: int


def calls_in_sources(package: str) -> list[SourceCall]:
    """Find every ``torch.ops.npu.<op>`` in a package's modules named ``npu``, without importing.

    A module counts if it or a package it lies in is named ``npu``: ``ops/norm/npu.py`` or
    ``npu/attention.py``. A test compares this with :attr:`Contract.calls`, so that no call can be
    added without one that checks it.

    Args:
        package: dotted name of an importable package, such as ``"ascend_ops_core"``.

    Raises:
        InvalidInputError: there is no such package, or ``torch.ops.npu`` is used other than by
            a literal operator name, which could not be followed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise InvalidInputError(f"package {package!r}", "it cannot be found", "Install it.")
    found = []
    for folder in spec.submodule_search_locations:
        for file in sorted(Path(folder).rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            if "npu" in parts:
                module = ".".join([package, *parts]).removesuffix(".__init__")
                found += _calls(file.read_text(encoding="utf-8"), module)
    return found


def _calls(source: str, module: str) -> list[SourceCall]:
    found = []
    followed: set[ast.AST] = set()
    # Parents come before their children in this walk.
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Attribute, ast.Name)) and node not in followed:
            chain = _chain(node)
            if chain[:3] == _NAMESPACE:
                if len(chain) == 3:
                    raise InvalidInputError(
                        f"{module}:{node.lineno}",
                        "torch.ops.npu is used without a literal operator name",
                        "Write torch.ops.npu.<name>(...) where it is called.",
                    )
                op = ".".join(part for part in chain[3:] if part != "default")
                found.append(SourceCall(op, module, node.lineno))
                followed.update(ast.walk(node))
    return sorted(found, key=lambda call: (call.line, call.op))


def _chain(node: ast.expr) -> list[str]:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [node.id, *names] if isinstance(node, ast.Name) else []
