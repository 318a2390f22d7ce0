"""Faulty copies of a module with kernels, to show that a proof would notice the fault."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch

from ascend_ops_core.registry import find
from ascend_ops_core.testing.proofs import InterpreterProof, proofs_of_kernels


@contextmanager
def mutated(module: ModuleType, original: str, replacement: str) -> Iterator[ModuleType]:
    """Import a copy of ``module`` (of a package: its ``__init__``) with other text at one place.

    While the block runs the copy stands in ``sys.modules`` for the module.

    Args:
        module: for example ``ops.norm.kernels``.
        original: must occur in the module's source exactly once.
        replacement: what stands there instead.

    Raises:
        ValueError: ``original`` does not occur exactly once, so the mutant is not the one meant.
    """
    source = inspect.getsource(module)
    if source.count(original) != 1:
        raise ValueError(f"{original!r} occurs {source.count(original)} times in {module.__name__}")
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        # Triton reads a kernel's source from its file.
        file = Path(folder) / "mutant.py"
        file.write_text(source.replace(original, replacement))
        spec = importlib.util.spec_from_file_location(
            module.__name__,
            file,
            submodule_search_locations=getattr(module, "__path__", None),
        )
        assert spec is not None
        assert spec.loader is not None
        copy = importlib.util.module_from_spec(spec)
        sys.modules[module.__name__] = copy
        try:
            spec.loader.exec_module(copy)
            yield copy
        finally:
            sys.modules[module.__name__] = module


def assert_noticed(qualified_name: str, original: str, replacement: str) -> None:
    """Fail unless the interpreter proof of an operator notices a fault in its kernels.

    Args:
        qualified_name: ``package::name``.
        original: text that occurs once in the family's ``kernels``.
        replacement: the faulty text.
    """
    operator = find(qualified_name)
    module = importlib.import_module(f"{operator.family}.kernels")
    proofs = sorted(proofs_of_kernels(operator), key=_elements)
    with mutated(module, original, replacement):
        for proof in proofs:
            try:
                proof.check()
            except AssertionError:
                return
    raise AssertionError(f"no case of {qualified_name} notices {replacement!r}")


def _elements(proof: InterpreterProof) -> int:
    """Size of a proof's inputs: small ones are fast, and most faults show there."""
    arguments = proof.case.arguments("meta")
    return sum(value.numel() for value in arguments if isinstance(value, torch.Tensor))
