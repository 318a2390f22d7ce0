"""Whether this process's NPU is the simulated one, and what it needs in vLLM."""

from __future__ import annotations

import os
import sys
from typing import Any

ENVIRONMENT = "ASCEND_SIMULATED_NPU"
"""The variable that :mod:`ascend_ops_core.testing.simulated_npu` reads."""


def asked_for() -> bool:
    """Whether this process, and those it starts, shall have the simulated device."""
    return bool(os.environ.get(ENVIRONMENT))


def install() -> None:
    """Give this process the simulated device, unless it has it already.

    Raises:
        InvalidInputError: the variable asks for something that does not exist, or a real
            accelerator is loaded.
    """
    from ascend_ops_core.testing import simulated_npu

    simulated_npu.install_from_environment()


def installed() -> bool:
    """Whether this process has it; imports nothing."""
    module: Any = sys.modules.get("ascend_ops_core.testing.simulated_npu")
    return module is not None and module.installed()
