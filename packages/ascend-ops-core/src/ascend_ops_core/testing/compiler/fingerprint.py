"""The hash of everything that a compile result depends on.

The source counts as syntax: comments, docstrings, formatting and the place in the file do not
change it. Of the names that a kernel uses, Triton functions count with their own source and plain
values with what they are.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any

_HARNESS = "2"
"""Raised when the check itself comes to other results."""


def fingerprint(
    kernel: Any,
    signature: dict[str, str],
    constants: dict[str, Any],
    target: str,
    options: dict[str, Any],
    versions: str,
) -> str:
    """Return a hash that changes whenever the compiler could come to another result.

    Args:
        kernel: the ``@triton.jit`` function.
        signature: Triton's types of its run-time arguments.
        constants: its constants.
        target: bishengir's target.
        options: compiler options.
        versions: the compiler's versions.
    """
    parts = {
        "harness": _HARNESS,
        "source": _sources(plain_function(kernel)),
        "signature": signature,
        "constants": {name: repr(value) for name, value in constants.items()},
        "target": target,
        "options": {name: repr(value) for name, value in options.items()},
        "versions": versions,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@cache
def _sources(kernel: Any) -> list[list[str]]:
    """Return name and content of a kernel's function and of all Triton functions it leads to.

    Reading source is slow, and a kernel has many configurations.
    """
    found: dict[Any, list[str]] = {}
    waiting = [kernel]
    while waiting:
        function = plain_function(waiting.pop())
        if function in found:
            continue
        tree = _syntax(function)
        values = []
        for path, value in _used(tree, function):
            if _is_jit(value):
                waiting.append(value)
            elif isinstance(value, (bool, int, float, str, tuple)) or hasattr(value, "value"):
                values.append(f"{path}={getattr(value, 'value', value)!r}")
        content = "\n".join([ast.unparse(tree), *sorted(set(values))])
        found[function] = [function.__qualname__, content]
    return sorted(found.values())


def plain_function(kernel: Any) -> Any:
    """Return the Python function inside a Triton function and its autotuners."""
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel


def _is_jit(value: Any) -> bool:
    return hasattr(value, "fn") and hasattr(value, "arg_names")


def _syntax(function: Any) -> ast.FunctionDef:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    tree.decorator_list = []
    if ast.get_docstring(tree) is not None:
        tree.body = tree.body[1:] or [ast.Pass()]
    return tree


def _used(tree: ast.AST, function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the dotted names in ``tree`` that mean something outside of it, with their values."""
    closure = inspect.getclosurevars(function)
    outside = {**closure.globals, **closure.nonlocals}
    for node in ast.walk(tree):
        path: list[str] = []
        top: ast.AST = node
        while isinstance(top, ast.Attribute):
            path.append(top.attr)
            top = top.value
        if not isinstance(top, ast.Name) or top.id not in outside:
            continue
        value = outside[top.id]
        for name in reversed(path):
            value = getattr(value, name, None)
        # Triton's own language is covered by its version.
        if not str(getattr(plain_function(value), "__module__", "")).startswith("triton."):
            yield ".".join([top.id, *reversed(path)]), value
