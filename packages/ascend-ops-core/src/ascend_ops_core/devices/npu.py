"""The soc name as torch_npu tells it, asked without starting a device."""

from __future__ import annotations

import ctypes
import importlib.util
import sys

_CANN_LIBRARY = "libhccl.so"


def refusal_to_import() -> str | None:
    """Return why torch_npu must not be imported here, or None if it can be.

    Importing torch_npu without CANN fails half-way and leaves torch unusable, so CANN's library
    is looked for first.
    """
    if "torch_npu" in sys.modules:
        return None
    if importlib.util.find_spec("torch_npu") is None:
        return "torch_npu is not installed"
    try:
        ctypes.CDLL(_CANN_LIBRARY)
    except OSError:
        return f"torch_npu is installed but CANN is not set up ({_CANN_LIBRARY} is not found)"
    return None


def soc_name() -> str | None:
    """Return the soc name of device 0, or None if torch_npu sees no device.

    Call only when :func:`refusal_to_import` returned None.

    Raises:
        Exception: whatever torch_npu raises.
    """
    import torch_npu

    if torch_npu.npu.device_count() == 0:
        return None
    return str(torch_npu.npu.get_device_name(0))
