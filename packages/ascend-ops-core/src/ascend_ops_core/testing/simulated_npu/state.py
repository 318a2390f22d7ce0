"""What is installed in this process, and which device and stream are current."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ascend_ops_core.errors import InvalidInputError

KernelsMode = Literal["interpreter", "reference"]


@dataclass
class Installation:
    """How the device was installed.

    Attributes:
        family: device family.
        devices: number of devices.
        kernels: how Triton kernels run.
        contract: checks calls of ``torch.ops.npu``; None if it was left out.
    """

    family: str
    devices: int
    kernels: KernelsMode
    contract: Any


class _Current(threading.local):
    device = 0


INSTALLED: list[Installation] = []
"""Empty, or the one installation of this process."""

_current = _Current()


def installation() -> Installation:
    """Return the installation.

    Raises:
        InvalidInputError: there is none.
    """
    if not INSTALLED:
        raise InvalidInputError(
            "simulated NPU", "it is not installed in this process", "Call install() first."
        )
    return INSTALLED[0]


def current_device() -> int:
    """Return the current device index of this thread."""
    return _current.device


def set_current_device(device: Any) -> None:
    """Make a device current in this thread."""
    _current.device = index_of(device)


def index_of(device: Any) -> int:
    """Return the index of a device given as int, str, torch.device or None (the current one).

    Raises:
        InvalidInputError: it is another kind of device, or there is no device of that index.
    """
    if device is None:
        return _current.device
    if isinstance(device, int):
        index: int | None = device
    else:
        parsed = torch.device(device)
        if parsed.type != "npu":
            raise InvalidInputError(f"device {device}", "an npu device is needed", "Use 'npu:0'.")
        index = parsed.index
    if index is None or index == -1:
        return _current.device
    count = installation().devices
    if not 0 <= index < count:
        raise InvalidInputError(
            f"device npu:{index}",
            f"{count} simulated devices are installed",
            "Pass install() a larger number of devices.",
        )
    return index
