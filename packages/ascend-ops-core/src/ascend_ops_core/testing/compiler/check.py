"""Compiling one kernel configuration, or taking the result of the last time."""

from __future__ import annotations

import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ascend_ops_core.devices import COMPILED_FAMILIES, DeviceFacts, facts_of
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.launch import Launch
from ascend_ops_core.testing.compiler.bishengir import classify, compile_linalg, shortened
from ascend_ops_core.testing.compiler.fingerprint import fingerprint, plain_function
from ascend_ops_core.testing.compiler.hivm_counts import read_module
from ascend_ops_core.testing.compiler.lowering import lower
from ascend_ops_core.testing.compiler.report import CompileReport
from ascend_ops_core.testing.compiler.signature import checked, constants_of, signature_of
from ascend_ops_core.testing.compiler.toolchain import Toolchain, cache_folder, toolchain


def compile_kernel(
    kernel: Any,
    signature: dict[str, str],
    constants: dict[str, Any],
    family: str,
    *,
    options: dict[str, Any] | None = None,
    keep: Path | None = None,
    cache: bool = True,
) -> CompileReport:
    """Compile a Triton kernel for a device family as far as the open compiler goes.

    Args:
        kernel: the ``@triton.jit`` function.
        signature: Triton's type of each run-time argument by name, such as ``"*bf16"``, ``"i32"``.
        constants: its ``tl.constexpr`` arguments by name; those with a default may be missing.
        family: ``"A2"``, ``"A3"`` or ``"A5"``.
        options: fields of triton-ascend's ``NPUOptions``, for example ``{"multibuffer": False}``.
        keep: folder in which to leave the intermediate modules; compiles anew.
        cache: take a result of an earlier run if nothing that it depends on changed.

    Raises:
        InvalidInputError: no compiler in this environment, a family without Triton, arguments
            that do not fit the kernel.
    """
    facts = _compiled_facts(family)
    tools = toolchain()
    options = options or {}
    key = configuration_key(kernel, signature, constants, family, options=options)
    stored = cache_folder() / "results" / key[:2] / f"{key}.json"
    if cache and keep is None and stored.exists():
        return CompileReport.from_json(json.loads(stored.read_text()))
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="ascend-compile-") as temporary:
        folder = Path(temporary) if keep is None else keep.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        report = _compile(kernel, checked(signature), constants, facts, options, tools, folder)
        if report.error_class == "crash":
            # triton-adapter-opt crashes now and then on kernels that it compiles the next time.
            report = _compile(kernel, signature, constants, facts, options, tools, folder)
            if report.error_class == "crash":
                report = replace(report, error=f"crashed twice: {report.error}")
    report = replace(report, key=key, seconds=round(time.perf_counter() - start, 2))
    # Both say something about the machine or the moment as well.
    if cache and report.error_class not in ("timeout", "crash"):
        _store(stored, report)
    return report


def compile_launch(
    launch: Launch, family: str, *, keep: Path | None = None, cache: bool = True
) -> CompileReport:
    """Compile the kernel of a recorded launch; see :func:`compile_kernel`."""
    return compile_kernel(
        launch.kernel, signature_of(launch), constants_of(launch), family, keep=keep, cache=cache
    )


def configuration_key(
    kernel: Any,
    signature: dict[str, str],
    constants: dict[str, Any],
    family: str,
    *,
    options: dict[str, Any] | None = None,
) -> str:
    """Return the hash of everything that :func:`compile_kernel`'s result depends on."""
    target = str(_compiled_facts(family).compile_target.value)
    return fingerprint(kernel, signature, constants, target, options or {}, toolchain().versions)


def _compiled_facts(family: str) -> DeviceFacts:
    facts = facts_of(family)
    if not facts.triton:
        raise InvalidInputError(
            f"device family {family!r}",
            f"it has no Triton: {facts.compile_target.source}",
            f"Choose one of {', '.join(COMPILED_FAMILIES)}.",
        )
    return facts


def _compile(
    kernel: Any,
    signature: dict[str, str],
    constants: dict[str, Any],
    facts: DeviceFacts,
    options: dict[str, Any],
    tools: Toolchain,
    folder: Path,
) -> CompileReport:
    lowered = lower(kernel, signature, constants, facts, options)
    report = CompileReport(
        kernel=plain_function(kernel).__name__,
        family=facts.family,
        target=str(facts.compile_target.value),
        stage=lowered.stage,
        error=shortened(lowered.error),
        error_class=classify(lowered.error) if lowered.error else "",
        degraded=(),
        mix_mode=lowered.mix_mode,
        ub_bits=None,
        ub_limit_bits=facts.ub_bytes * 8,
        counts=None,
        seconds=0.0,
        key="",
    )
    if lowered.ttir:
        (folder / "kernel.ttir.mlir").write_text(lowered.ttir)
    if lowered.stage != "linalg":
        return report
    linalg = folder / "kernel.ttadapter.mlir"
    linalg.write_text(lowered.linalg)
    compiled = compile_linalg(linalg, facts, lowered.options, tools)
    if compiled.error_class:
        return replace(report, error=compiled.error, error_class=compiled.error_class)
    module = read_module(compiled.hivm)
    printed = compiled.ub_bits
    return replace(
        report,
        stage="hivm",
        degraded=compiled.degraded,
        ub_bits=module.ub_bits if printed is None else printed,
        counts=module.counts,
    )


def _store(file: Path, report: CompileReport) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as temporary:
        json.dump(report.to_json(), temporary)
    os.replace(temporary.name, file)
