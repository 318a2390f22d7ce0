"""Chooses between an operator's definition in torch and its faster CPU kernel.

A family that has CPU kernels keeps them in ``cpu.py``, which imports numba. Families ask a
:class:`CpuKernels` object, so that numba stays optional and a missing numba is reported once
instead of being a silent slowdown.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from types import ModuleType

import torch

logger = logging.getLogger(__name__)

_missing_reported = False


def numba_available() -> bool:
    """True when numba can be imported (the ``cpu-kernels`` extra)."""
    return importlib.util.find_spec("numba") is not None


class CpuKernels:
    """Lazy handle on one family's ``cpu.py``.

    Args:
        module_name: dotted name of the module with the kernels.
    """

    def __init__(self, module_name: str) -> None:
        self._module_name = module_name
        self._module: ModuleType | None = None
        self._unavailable = False

    def load(self) -> ModuleType | None:
        """The kernel module, or None when numba is not installed (logged once per process)."""
        if self._module is None and not self._unavailable:
            if numba_available():
                # Whatever compiles first starts numba's pool.
                follow_torch_threads()
                module = importlib.import_module(self._module_name)
                importlib.import_module("ascend_ops_core.cpu_cache").forget_stale(module)
                self._module = module
            else:
                self._unavailable = True
                _report_missing_numba()
        return self._module

    def usable(self, *tensors: torch.Tensor | None) -> ModuleType | None:
        """The kernel module if it may run on these tensors, else None.

        The kernels compute outside autograd and read host memory, so a tensor on another device
        or one that needs a gradient goes to the reference.
        """
        grad = torch.is_grad_enabled()
        for tensor in tensors:
            # is_cpu, since building a device object costs as much as the rest of this loop.
            if tensor is not None and (not tensor.is_cpu or (grad and tensor.requires_grad)):
                return None
        return self._module if self._module is not None else self.load()


def follow_torch_threads() -> None:
    """Give the numba kernels as many threads as torch uses in this process.

    Call it once per step: an engine may bind torch to fewer cores after import.
    """
    if numba_available():
        threads = importlib.import_module("ascend_ops_core.cpu_threads")
        threads.follow_torch()


def _report_missing_numba() -> None:
    global _missing_reported
    if not _missing_reported:
        _missing_reported = True
        logger.warning(
            "numba is not installed: operators run their plain torch definition on this CPU, "
            "which is slower in decode. Install the extra: "
            "pip install 'ascend-ops-core[cpu-kernels]'."
        )
