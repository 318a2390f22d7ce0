"""From linalg to HIVM through bishengir's open programs, and what their messages mean."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.testing.compiler.toolchain import Toolchain

SECONDS = 120
"""Time after which a compilation counts as hanging."""

# triton-ascend's option and bishengir's flag for it; None means the compiler's own default
_FLAGS = {
    "multibuffer": "enable-auto-multi-buffer",
    "enable_auto_bind_sub_block": "enable-auto-bind-sub-block",
    "enable_hivm_auto_cv_balance": "enable-hivm-auto-cv-balance",
    "sync_solver": "enable-hivm-graph-sync-solver",
    "unit_flag": "enable-hivm-unit-flag-sync",
    "inject_barrier_all": "enable-hivm-inject-barrier-all-sync",
    "inject_block_all": "enable-hivm-inject-block-all-sync",
    "limit_auto_multi_buffer_only_for_local_buffer": (
        "limit-auto-multi-buffer-only-for-local-buffer"
    ),
    "limit_auto_multi_buffer_of_local_buffer": "limit-auto-multi-buffer-of-local-buffer",
    "set_workspace_multibuffer": "set-workspace-multibuffer",
    "tile_mix_vector_loop": "tile-mix-vector-loop",
    "tile_mix_cube_loop": "tile-mix-cube-loop",
    "disable_auto_inject_block_sync": "disable-auto-inject-block-sync",
}

# first match wins
_ERRORS = (
    ("ub_overflow", r"\bub overflow"),
    ("l1_overflow", r"\b(?:cbuf|l1) overflow"),
    ("l0_overflow", r"\b(?:l0[abc]|c[abc]) overflow"),
    (
        "crash",
        r"PLEASE submit a bug report|Stack dump|Segmentation fault|Assertion `|with status -\d",
    ),
    ("unsupported_type", r"(?i)unsupported (?:data ?)?type|type \S+ (?:is )?not supported|\bfp8"),
    ("unsupported_op", r"failed to legalize operation|not supported|Unsupported"),
    ("invalid_ir", r"error: '[\w.]+' op"),
    ("frontend", r"^(?:CompilationError|\w*Error):|CompilationError"),
)
_WORTH_KEEPING = re.compile(r"error|overflow|Assertion|bug report", re.IGNORECASE)
_ALLOCATED = re.compile(r"Allocated UB size\s*=\s*(\d+)")
_RETRIED = re.compile(r"automatically set ([\w-]+) to false")
_PLACE = re.compile(r'(?:loc\()?"?[^\s"]*/kernel\.\w+\.mlir"?:\d+:\d+\)?: ?')
_MESSAGE = 3000  # characters of a message that are kept


@dataclass(frozen=True)
class Compiled:
    """What bishengir made of a linalg module.

    Attributes:
        hivm: text of the HIVM module, empty if there is none.
        ub_bits: unified buffer as the compiler prints it (A5 only).
        degraded: options that it switched off by itself to fit.
        error: its message if it failed.
        error_class: class of the error.
    """

    hivm: str
    ub_bits: int | None
    degraded: tuple[str, ...]
    error: str
    error_class: str


def compile_linalg(
    linalg: Path, facts: DeviceFacts, options: dict[str, Any], tools: Toolchain
) -> Compiled:
    """Compile a linalg module; the HIVM module is left beside it.

    Args:
        linalg: file of the module, in a folder of its own.
        facts: the device family.
        options: triton-ascend's options, defaults included.
        tools: the compiler.
    """
    folder = linalg.parent
    environment = {**os.environ, "PATH": f"{tools.stand_ins}{os.pathsep}{os.environ['PATH']}"}
    try:
        done = subprocess.run(
            _command(linalg, facts, options, tools),
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Compiled("", None, (), f"bishengir-compile ran for {SECONDS} s", "timeout")
    output = done.stdout + done.stderr
    module = folder / "module.hivm.opt.mlir"
    if done.returncode != 0 or not module.exists():
        message = _message(output) or f"bishengir-compile ended with status {done.returncode}"
        return Compiled("", None, (), message, classify(f"{output}\n{message}"))
    allocated = _ALLOCATED.findall(output)
    return Compiled(
        module.read_text(),
        int(allocated[-1]) if allocated else None,
        tuple(dict.fromkeys(_RETRIED.findall(output))),
        "",
        "",
    )


def classify(message: str) -> str:
    """Return the class of a compiler's message; ``other`` if none fits."""
    for name, pattern in _ERRORS:
        if re.search(pattern, message, re.MULTILINE):
            return name
    return "other"


def shortened(message: str) -> str:
    """Return a front end's message with its last line, which gives the reason, first."""
    lines = [line for line in message.strip().splitlines() if line.strip()]
    return "\n".join(dict.fromkeys([*lines[-1:], *lines]))[:_MESSAGE]


def _message(output: str) -> str:
    lines = [
        _PLACE.sub("", line).strip()[:400]
        for line in output.splitlines()
        if _WORTH_KEEPING.search(line) and "[NOTE]" not in line
    ]
    telling = [line for line in lines if "Failed to run" not in line] or lines
    return "\n".join(dict.fromkeys(telling[:8]))[:_MESSAGE]


def _command(
    linalg: Path, facts: DeviceFacts, options: dict[str, Any], tools: Toolchain
) -> list[str]:
    a5 = facts.family == "A5"
    program = tools.programs / ("bishengir-compile-a5" if a5 else "bishengir-compile")
    flags = [
        f"--{flag}={_spelled(options[name])}"
        for name, flag in _FLAGS.items()
        if options.get(name) is not None
    ]
    own = ["--enable-print-memory-allocated-size"] if a5 else ["--enable-hivm-compile=true"]
    return [
        str(program),
        str(linalg),
        f"--target={facts.compile_target.value}",
        "--enable-hfusion-compile=true",
        "--enable-triton-kernel-compile=true",
        *flags,
        *own,
        f"--save-temps={linalg.parent}",
        "-o",
        str(linalg.parent / "kernel"),
    ]


def _spelled(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
