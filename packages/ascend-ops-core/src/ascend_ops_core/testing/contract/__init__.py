"""Contract mode: every call of a torch_npu operator checked without torch_npu, CANN or a device.

:func:`install` reads the files of a torch_npu wheel, registers all its operator schemas as
``torch.ops.npu.<name>`` and runs the wheel's own meta kernels, without importing ``torch_npu``::

    contract = install("torch_npu-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl", family="A3")
    x = torch.empty(4, 8, dtype=torch.bfloat16, device="meta")
    torch.ops.npu.npu_rms_norm(x, x[0], epsilon=1e-6)
    contract.calls  # [Call(op='npu_rms_norm', ...)]

A call that the wheel's operator would refuse by its signature is refused here as well: an unknown
or missing argument, a keyword-only argument passed by position, one tensor instead of a list, an
operator that does not exist. Shapes and dtypes are checked as far as the wheel's meta kernels do,
which is rarely to the documented limits; those belong to the ``supports_...`` predicates.

What it says nothing about: the kernels of CANN themselves, their precision and their speed.
"""

from __future__ import annotations

from ascend_ops_core.testing.contract.calls import ArgumentFacts, Call
from ascend_ops_core.testing.contract.drift import Change, changes
from ascend_ops_core.testing.contract.install import Contract, install, installed
from ascend_ops_core.testing.contract.schemas import read_schemas
from ascend_ops_core.testing.contract.sources import SourceCall, calls_in_sources
from ascend_ops_core.testing.contract.wheel import SUPPORTED_WHEELS, WheelFiles, open_wheel

__all__ = [
    "SUPPORTED_WHEELS",
    "ArgumentFacts",
    "Call",
    "Change",
    "Contract",
    "SourceCall",
    "WheelFiles",
    "calls_in_sources",
    "changes",
    "install",
    "installed",
    "open_wheel",
    "read_schemas",
]
