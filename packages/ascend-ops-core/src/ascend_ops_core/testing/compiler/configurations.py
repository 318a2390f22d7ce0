"""Every kernel configuration that the cases of a package's operators lead to."""

from __future__ import annotations

import gc
import logging
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
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

_logger = logging.getLogger(__name__)
_TRIES = 3


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

    A configuration whose process dies is tried again in processes of its own, which is logged.

    Args:
        chosen: the configurations.
        workers: processes; each takes one core.

    Raises:
        RuntimeError: the process died at every try.
    """
    global _shared
    _shared = chosen
    # A child that collected the parent's compiler contexts would wait for threads it does not have.
    gc.collect()
    gc.freeze()
    reports: dict[int, CompileReport] = {}
    left = list(range(len(chosen)))
    try:
        while left:
            reports |= _compiled(left, workers)
            left = [one for one in left if one not in reports]
            # Configurations are begun in their order, so what killed a process is among these.
            for one in left[:workers]:
                reports[one] = _compiled_alone(one)
            left = left[workers:]
    finally:
        gc.unfreeze()
    return [reports[one] for one in range(len(chosen))]


def _compiled(indices: Sequence[int], workers: int) -> dict[int, CompileReport]:
    """Reports of the configurations that were compiled before a process died, if one did."""
    reports = {}
    # Forked, since jit functions cannot be sent to another process.
    # Without collections: what one frees of the front end has crashed kernels compiled behind it.
    with ProcessPoolExecutor(
        workers, multiprocessing.get_context("fork"), initializer=gc.disable
    ) as pool:
        futures = {one: pool.submit(_compile_one, one) for one in indices}
        for one, future in futures.items():
            with suppress(BrokenProcessPool):
                reports[one] = future.result()
    return reports


def _compiled_alone(index: int) -> CompileReport:
    for number in range(_TRIES):
        _logger.warning(
            "The compiler's process may have died on %s: try %d.", _shared[index], number + 1
        )
        found = _compiled([index], 1)
        if found:
            return found[index]
    raise RuntimeError(f"the compiler's process died {_TRIES} times on {_shared[index]}")


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
