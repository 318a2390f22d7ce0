"""A simulated NPU: the device ``npu`` of torch in pure Python, over host memory.

:func:`install` gives this process an accelerator ``npu`` on which the NPU path of a program runs:
tensors, streams, events, memory figures, random numbers, pinned memory, ``torch.npu`` and
``torch.accelerator``. Operators of torch run their CPU kernels; operators of torch_npu are checked
by its schemas and meta kernels and then run their references
(:mod:`ascend_ops_core.testing.npu_references`); Triton kernels run through Triton's interpreter.
CPU tensors and npu tensors do not mix, as on hardware.

It says nothing about precision, timing, or the order of work between streams: everything is done
at once, in the order of the calls. Graphs are captured and replayed, and mistakes in that are
errors (:mod:`~ascend_ops_core.testing.simulated_npu.graphs`). It changes torch for the whole
process and cannot be undone, so use a process of its own. Without :func:`install`, importing this
changes nothing.

For programs that start their own processes, see ``python -m
ascend_ops_core.testing.simulated_npu --help``.
"""

from __future__ import annotations

from ascend_ops_core.testing.simulated_npu.aliases import to_cpu_alias, to_npu_alias
from ascend_ops_core.testing.simulated_npu.counters import Counters, counters
from ascend_ops_core.testing.simulated_npu.host_calls import record_host_call
from ascend_ops_core.testing.simulated_npu.installing import (
    ENVIRONMENT,
    install,
    install_from_environment,
    installed,
    kernels_mode,
)

__all__ = [
    "ENVIRONMENT",
    "Counters",
    "counters",
    "install",
    "install_from_environment",
    "installed",
    "kernels_mode",
    "record_host_call",
    "to_cpu_alias",
    "to_npu_alias",
]
