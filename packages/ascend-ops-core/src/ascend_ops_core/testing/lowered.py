"""Running on the CPU what the Ascend front end made of a Triton kernel.

triton-ascend lowers a kernel to linalg, and Debian's MLIR and LLVM 19 turn that into a library for
this machine. It shows the arithmetic of the lowered kernel, which the interpreter does not see.
Kernels for which the front end calls Ascend's library (cumsum, gather, sort) cannot run so.
"""

from __future__ import annotations

import ctypes
import inspect
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

from ascend_ops_core.devices import facts_of
from ascend_ops_core.launch import Launch
from ascend_ops_core.testing.compiler.bishengir import shortened
from ascend_ops_core.testing.compiler.fingerprint import plain_function
from ascend_ops_core.testing.compiler.lowering import lower
from ascend_ops_core.testing.compiler.signature import constants_of, signature_of
from ascend_ops_core.testing.compiler.toolchain import missing as compiler_missing

_PROGRAMS = ("mlir-opt-19", "mlir-translate-19", "opt-19", "llc-19", "cc")
_PASSES = (
    "--canonicalize",
    "--convert-elementwise-to-linalg",
    "--linalg-fuse-elementwise-ops",
    "--eliminate-empty-tensors",
    "--empty-tensor-to-alloc-tensor",
    "--one-shot-bufferize=allow-return-allocs-from-loops=true",
    "--buffer-deallocation-pipeline",
    "--convert-bufferization-to-memref",
    "--convert-linalg-to-loops",
    "--lower-affine",
    "--arith-expand=include-bf16=true",
    "--convert-scf-to-cf",
    "--expand-strided-metadata",
    "--lower-affine",
    "--convert-math-to-llvm",
    "--convert-math-to-libm",
    "--convert-arith-to-llvm",
    "--convert-index-to-llvm",
    "--finalize-memref-to-llvm",
    "--convert-cf-to-llvm",
    "--convert-func-to-llvm",
    "--convert-arith-to-llvm",
    "--reconcile-unrealized-casts",
)

# What the generated code calls and neither libm nor Debian 12's libgcc has.
_RUNTIME = """\
#include <stdint.h>
#include <string.h>

struct view { char *base, *data; int64_t offset, shape[]; };
struct unranked { int64_t rank; struct view *view; };

static void copy(int64_t size, int64_t rank, const int64_t *shape, const int64_t *from_strides,
                 const int64_t *to_strides, const char *from, char *to) {
  if (rank == 0) { memcpy(to, from, size); return; }
  for (int64_t i = 0; i < shape[0]; i++)
    copy(size, rank - 1, shape + 1, from_strides + 1, to_strides + 1,
         from + i * from_strides[0] * size, to + i * to_strides[0] * size);
}

void memrefCopy(int64_t size, struct unranked *source, struct unranked *target) {
  struct view *from = source->view, *to = target->view;
  int64_t rank = source->rank;
  copy(size, rank, from->shape, from->shape + rank, to->shape + rank,
       from->data + from->offset * size, to->data + to->offset * size);
}

/* Round to nearest even; the result lies in the low half of the register. */
float __truncsfbf2(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) bits = bits >> 16 | 0x40u;
  else bits = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  memcpy(&value, &bits, 4);
  return value;
}

float __truncdfbf2(double value) { return __truncsfbf2((float)value); }
"""

_WORKSPACE_BYTES = 1 << 20  # the lock and the workspace that every lowered kernel takes first
_INTEGERS = {
    "i1": ctypes.c_bool,
    "i8": ctypes.c_int8,
    "i16": ctypes.c_int16,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "u8": ctypes.c_uint8,
    "u16": ctypes.c_uint16,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
}


class NotRunnableError(Exception):
    """The lowered kernel cannot run on a CPU; the message says why."""


def missing() -> str:
    """Return why lowered kernels cannot run here, or an empty string if they can."""
    reason = compiler_missing()
    if reason:
        return f"not present, because {reason}"
    absent = [name for name in _PROGRAMS if shutil.which(name) is None]
    if absent:
        return (
            f"not present, because {', '.join(absent)} is not on PATH (Debian: mlir-19-tools, "
            "llvm-19, gcc)"
        )
    return ""


class LoweredRunner:
    """Runs launches on CPU tensors; its :meth:`run` is what ``launch.executor`` takes.

    Args:
        family: device family that kernels are lowered for.
        folder: where libraries are built.
    """

    def __init__(self, family: str, folder: Path) -> None:
        self.family = family
        self._folder = folder
        self._libraries: dict[str, Any] = {}

    def run(self, launch: Launch) -> None:
        """Run every program of a launch, one after the other.

        Raises:
            NotRunnableError: the front end or LLVM refuses the kernel.
        """
        signature = signature_of(launch)
        lowered = lower(launch.kernel, signature, constants_of(launch), facts_of(self.family), {})
        if lowered.stage != "linalg":
            raise NotRunnableError(f"it was not lowered: {shortened(lowered.error)}")
        function = self._library(lowered.linalg)
        spare = [torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8) for _ in range(2)]
        passed = [word for tensor in spare for word in _memref(tensor)]
        # In the kernel's order, which need not be the launch's.
        for name in inspect.signature(plain_function(launch.kernel)).parameters:
            if name in signature:
                passed += _words(launch.arguments[name], signature[name])
        grid = [ctypes.c_int32(size) for size in (launch.grid, 1, 1)]
        zero = ctypes.c_int32(0)
        for program in range(launch.grid):
            function(*passed, *grid, ctypes.c_int32(program), zero, zero)

    def _library(self, linalg: str) -> Any:
        if linalg not in self._libraries:
            with tempfile.TemporaryDirectory(dir=self._folder) as folder:
                library = ctypes.CDLL(str(_build(linalg, Path(folder))))
            name = re.search(r"func\.func @(\w+)", linalg)
            assert name is not None  # every lowered kernel is one
            function = getattr(library, name[1])
            function.restype = None
            self._libraries[linalg] = function
        return self._libraries[linalg]


def _build(linalg: str, folder: Path) -> Path:
    called = re.findall(r"func\.func private @(\w+)", linalg)
    if called:
        raise NotRunnableError(f"it calls Ascend's library: {', '.join(called)}")
    # Hints for the vector cores; their dialect is not in Debian's MLIR.
    plain = re.sub(r"^\s*annotation\.mark.*$", "", linalg, flags=re.MULTILINE)
    (folder / "linalg.mlir").write_text(plain)
    (folder / "runtime.c").write_text(_RUNTIME)
    link = ("-O2", "-fPIC", "-shared", "-Wl,-z,defs", "runtime.c", "kernel.o", "-lm")
    steps: tuple[tuple[str, ...], ...] = (
        ("mlir-opt-19", "linalg.mlir", *_PASSES, "-o", "llvm.mlir"),
        ("mlir-translate-19", "--mlir-to-llvmir", "llvm.mlir", "-o", "kernel.ll"),
        ("opt-19", "-O2", "kernel.ll", "-o", "kernel.bc"),
        ("llc-19", "-O2", "-filetype=obj", "-relocation-model=pic", "kernel.bc", "-o", "kernel.o"),
        ("cc", *link, "-o", "kernel.so"),
    )
    for step in steps:
        done = subprocess.run(step, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = done.stderr.splitlines()
            errors = [line for line in lines if "error" in line or "undefined" in line] or lines
            raise NotRunnableError(f"{step[0]}: {errors[0].strip()[:300] if errors else 'failed'}")
    return folder / "kernel.so"


def _memref(tensor: torch.Tensor) -> list[Any]:
    """Return the words of a one-dimensional memref from a tensor's first element on."""
    start = ctypes.c_void_p(tensor.data_ptr())
    stored = int(tensor.untyped_storage().nbytes()) // tensor.element_size()
    size = stored - int(tensor.storage_offset())
    return [start, start, ctypes.c_int64(0), ctypes.c_int64(size), ctypes.c_int64(1)]


def _words(value: Any, kind: str) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return _memref(value)
    if kind == "fp32":
        return [ctypes.c_float(value)]
    return [_INTEGERS[kind](value)]
