"""Every kernel configuration that the cases of a package's operators lead to."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ascend_ops_core.cases import Case, cases_of
from ascend_ops_core.devices import COMPILED_FAMILIES, device_family
from ascend_ops_core.launch import Launch, recorded_launches
from ascend_ops_core.registry import Operator, operators
from ascend_ops_core.testing.compiler.check import compile_launch, configuration_key
from ascend_ops_core.testing.compiler.fingerprint import plain_function
from ascend_ops_core.testing.compiler.report import CompileReport
from ascend_ops_core.testing.compiler.signature import constants_of, signature_of


@dataclass(frozen=True)
class Configuration:
    """One kernel with types and constants on one family.

    Attributes:
        launch: the first launch that led to it.
        family: device family.
        key: hash of everything that the compiler sees.
        uses: operators (``package::name``) with the cases that lead to it.
    """

    launch: Launch
    family: str
    key: str
    uses: tuple[tuple[str, str], ...]

    @property
    def kernel(self) -> str:
        """Name of the kernel."""
        return kernel_of(self.launch)

    def __str__(self) -> str:
        return f"{self.family}-{self.kernel}-{self.key[:8]}"


def kernel_of(launch: Launch) -> str:
    """Return the name of a launch's kernel."""
    return str(plain_function(launch.kernel).__name__)


def configurations(namespace: str) -> list[Configuration]:
    """Return every configuration of a package's Triton kernels, each once, in a fixed order.

    The implementations run on ``meta`` tensors, and their launches are recorded.

    Args:
        namespace: import name of the package.

    Raises:
        InvalidInputError: this environment has no compiler.
        RuntimeError: an implementation cannot run on ``meta`` tensors.
    """
    found: dict[str, Configuration] = {}
    for operator in operators(namespace):
        if "triton" in operator.npu:
            for case in cases_of(operator):
                for family in COMPILED_FAMILIES:
                    for launch in launches_of(operator, case, family):
                        _add(found, launch, family, (operator.qualified_name, case.name))
    return sorted(found.values(), key=lambda one: (one.kernel, one.family, one.key))


def launches_of(operator: Operator, case: Case, family: str) -> list[Launch]:
    """Return the launches of an operator's Triton implementation; none if it refuses the case.

    Raises:
        RuntimeError: the implementation cannot run on ``meta`` tensors.
    """
    arguments = case.arguments("meta")
    with device_family(family) as facts, recorded_launches() as launches:
        if operator.supports("triton", facts, *arguments):
            try:
                operator.call_of("triton")(*arguments)
            except Exception as error:
                raise RuntimeError(
                    f"{operator.name}, case {case.name}, {family}: the Triton implementation must "
                    f"run on meta tensors, for shapes alone, but {type(error).__name__}: {error}"
                ) from error
    return launches


def compile_all(chosen: Sequence[Configuration], workers: int = 2) -> list[CompileReport]:
    """Compile configurations anew and return their reports in the same order.

    Args:
        chosen: the configurations.
        workers: processes; each takes one core.
    """
    global _shared
    _shared = chosen
    # A child that collected the parent's compiler contexts would wait for threads it does not have.
    gc.collect()
    gc.freeze()
    # Forked, since jit functions cannot be sent to another process.
    # Without collections: what one frees of the front end has crashed kernels compiled behind it.
    with multiprocessing.get_context("fork").Pool(workers, initializer=gc.disable) as pool:
        reports = pool.map(_compile_one, range(len(chosen)), chunksize=1)
    gc.unfreeze()
    return reports


_shared: Sequence[Configuration] = ()


def _compile_one(index: int) -> CompileReport:
    one = _shared[index]
    return compile_launch(one.launch, one.family, cache=False)


def _add(
    found: dict[str, Configuration], launch: Launch, family: str, use: tuple[str, str]
) -> None:
    signature: dict[str, Any] = signature_of(launch)
    key = configuration_key(launch.kernel, signature, constants_of(launch), family)
    known = found.get(key)
    if known is None:
        found[key] = Configuration(launch, family, key, (use,))
    elif use not in known.uses:
        found[key] = replace(known, uses=(*known.uses, use))
