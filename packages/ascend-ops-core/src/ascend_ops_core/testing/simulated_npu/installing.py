"""Installing the simulated device in a process."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from ascend_ops_core.devices import facts_of, use_family
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.launch import use_definitions, use_executor
from ascend_ops_core.testing.simulated_npu.state import (
    INSTALLED,
    Installation,
    KernelsMode,
    installation,
)

ENVIRONMENT = "ASCEND_SIMULATED_NPU"
"""Variable with the arguments of :func:`install`: ``family=A3,devices=2,kernels=reference``."""

USUAL_MEMORY = 64 * 1024**3
"""Bytes of a device of a family for which no public source states them: what A2 and A3 have."""

_kept: list[Any] = []


def install(
    family: str = "A3",
    devices: int = 1,
    kernels: KernelsMode = "interpreter",
    *,
    wheel: str | os.PathLike[str] | None = None,
    with_contract: bool = True,
    memory_bytes: int | None = None,
) -> None:
    """Give this process the device ``npu``. A second call with the same arguments does nothing.

    Args:
        family: device family; also what operators are chosen and tiled for in this process.
        devices: number of devices.
        kernels: ``"interpreter"`` runs Triton kernels through Triton's interpreter, for which
            ``TRITON_INTERPRET=1`` must be set before Python starts; ``"reference"`` lets operators
            run their definition where they would launch one, and refuses other launches.
        wheel: the torch_npu whose operators exist, see
            :func:`ascend_ops_core.testing.contract.open_wheel`.
        with_contract: False leaves torch_npu's operators out, and needs no wheel.
        memory_bytes: memory of each device; by default what the family's facts say, or
            :data:`USUAL_MEMORY` where they say nothing.

    Raises:
        InvalidInputError: an argument is not known, no wheel is found, another device is installed,
            or a real accelerator uses PrivateUse1 in this process.
    """
    facts = facts_of(family)
    _check(devices, kernels)
    if INSTALLED:
        asked = (family, devices, kernels)
        here = (installation().family, installation().devices, installation().kernels)
        if asked != here:
            raise InvalidInputError(
                f"simulated NPU {asked}", f"this process has {here}", "Use another process."
            )
        return
    if torch._C._get_privateuse1_backend_name() != "privateuseone":
        raise InvalidInputError(
            "simulated NPU",
            f"this process has the accelerator {torch._C._get_privateuse1_backend_name()!r}",
            "Set TORCH_DEVICE_BACKEND_AUTOLOAD=0 so that none is loaded.",
        )
    total = memory_bytes or facts.figure("hbm_bytes").value or USUAL_MEMORY
    contract = None
    if with_contract:
        from ascend_ops_core.testing.contract import install as install_contract

        contract = install_contract(wheel, family)
    INSTALLED.append(Installation(family, devices, kernels, contract))
    _install_device(devices, total)
    use_family(family)
    if kernels == "reference":
        from ascend_ops_core.testing.simulated_npu.launches import (
            announce_definitions,
            run_definition,
        )

        announce_definitions()
        use_definitions(run_definition)


def _check(devices: int, kernels: str) -> None:
    if devices < 1:
        raise InvalidInputError(f"devices={devices}", "at least 1", "Ask for one or more.")
    if kernels not in ("interpreter", "reference"):
        raise InvalidInputError(
            f"kernels={kernels!r}", "known are 'interpreter' and 'reference'", "Choose one of them."
        )
    if kernels == "interpreter" and os.environ.get("TRITON_INTERPRET") != "1":
        raise InvalidInputError(
            f"TRITON_INTERPRET={os.environ.get('TRITON_INTERPRET')!r}",
            "kernels='interpreter' needs it to be 1 before a kernel's module is imported",
            "Set TRITON_INTERPRET=1 before Python starts, or choose kernels='reference'.",
        )


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def has_primary_context(self, index: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


class _Guard(torch._C._acc.DeviceGuard):
    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1


def _install_device(devices: int, total: int) -> None:
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    from ascend_ops_core.testing.simulated_npu import special
    from ascend_ops_core.testing.simulated_npu.dispatch import fallback
    from ascend_ops_core.testing.simulated_npu.generators import install_generators
    from ascend_ops_core.testing.simulated_npu.launches import execute
    from ascend_ops_core.testing.simulated_npu.memory import MEMORY
    from ascend_ops_core.testing.simulated_npu.module import accelerator_functions, make_module
    from ascend_ops_core.testing.simulated_npu.pinned import install_pinned
    from ascend_ops_core.testing.simulated_npu.streams import install_streams
    from ascend_ops_core.testing.simulated_npu.tensors import install_tensor_methods

    MEMORY.set_up(devices, total)
    module, hooks, guard = make_module(), _Hooks(), _Guard()
    _setup_privateuseone_for_python_backend("npu", module, hooks, guard)
    sys.modules["torch.npu"] = module
    module.__dict__["default_generators"] = install_generators()
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(fallback, "PrivateUse1")
    aten = torch.library.Library("aten", "IMPL")
    aten.impl("convolution_overrideable", special.convolution, "PrivateUse1")
    aten.impl("convolution_backward_overrideable", special.convolution_backward, "PrivateUse1")
    aten.impl("_to_copy", special.to_copy, "PrivateUse1")
    # torch resolves lazily conjugated or negated tensors by copying them, so this must take them.
    for key in ("Conjugate", "Negative"):
        aten.impl("_copy_from", torch.library.fallthrough_kernel, key)
    _kept.extend((module, hooks, guard, everything, aten))
    for name, function in accelerator_functions().items():
        setattr(torch.accelerator, name, function)
    install_streams()
    install_pinned()
    install_tensor_methods()
    use_executor(execute)


def install_from_environment() -> bool:
    """Install what ``ASCEND_SIMULATED_NPU`` asks for; returns whether it asks for anything.

    Raises:
        InvalidInputError: it names an argument that is not known, or :func:`install` refuses.
    """
    text = os.environ.get(ENVIRONMENT, "")
    if not text:
        return False
    arguments: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in ("family", "devices", "kernels", "memory_bytes", "wheel"):
            raise InvalidInputError(
                f"{ENVIRONMENT}={text!r}",
                "its parts are family=, devices=, kernels=, memory_bytes=, wheel=",
                "Correct it, or unset it.",
            )
        arguments[name] = int(value) if name in ("devices", "memory_bytes") else value
    install(**arguments)
    return True


def installed() -> bool:
    """Whether this process has the simulated device."""
    return bool(INSTALLED)


def kernels_mode() -> KernelsMode | None:
    """Return how Triton kernels run here; None without the simulated device."""
    return INSTALLED[0].kernels if INSTALLED else None
