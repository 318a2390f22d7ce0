"""Does a Triton kernel compile for Ascend, does it fit, and what is it made of? Without an NPU.

The open part of Huawei's compiler (triton-ascend and ascendnpu-ir, extra ``compile``) takes a
kernel up to the input of the closed back end. Nothing runs on a device, all counts are static, and
the compiler in CANN may differ.
"""

from __future__ import annotations

from ascend_ops_core.testing.compiler.check import (
    compile_kernel,
    compile_launch,
    configuration_key,
)
from ascend_ops_core.testing.compiler.report import STAGES, CompileReport, Counts
from ascend_ops_core.testing.compiler.signature import constants_of, signature_of
from ascend_ops_core.testing.compiler.toolchain import missing

__all__ = [
    "STAGES",
    "CompileReport",
    "Counts",
    "compile_kernel",
    "compile_launch",
    "configuration_key",
    "constants_of",
    "missing",
    "signature_of",
]
