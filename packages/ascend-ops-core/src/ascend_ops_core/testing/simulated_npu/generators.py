"""Random numbers of the simulated device.

A generator of the device is a CPU generator that says it is on the device. Each device has a
default one, so that drawing on a device leaves the CPU's numbers as they are, and the reverse.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ascend_ops_core.testing.simulated_npu.state import current_device, index_of, installation

_CPUGenerator = torch.Generator


class NPUGenerator(torch.Generator):
    """A generator whose device is an npu."""

    _device: torch.device

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The npu."""
        return self._device


class _AnyGenerator(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _CPUGenerator)

    def __call__(cls, device: Any = "cpu") -> torch.Generator:
        if torch.device(device).type == "npu":
            return new_generator(device)
        return _CPUGenerator(device)


class Generator(metaclass=_AnyGenerator):
    """Stands for ``torch.Generator`` and makes generators of the simulated device as well."""


_defaults: list[torch.Generator] = []


def new_generator(device: Any) -> torch.Generator:
    """Return a generator for an npu, seeded as torch seeds new ones."""
    made = NPUGenerator()
    made._device = torch.device("npu", index_of(torch.device(device)))
    return made


def install_generators() -> tuple[torch.Generator, ...]:
    """Make and return the default generators, and let ``torch.Generator("npu")`` work."""
    _defaults.extend(new_generator(f"npu:{i}") for i in range(installation().devices))
    torch.Generator = Generator  # type: ignore[misc, assignment]
    return default_generators()


def default_generator(device: int | None = None) -> torch.Generator:
    """Return the default generator of a device, by default the current one."""
    return _defaults[current_device() if device is None else device]


def default_generators() -> tuple[torch.Generator, ...]:
    """Return the default generators of all devices."""
    return tuple(_defaults)


@contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """Let operators that take no generator draw from ``generator`` inside this block."""
    cpu = torch.default_generator
    before = cpu.get_state()
    cpu.set_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(cpu.get_state())
        cpu.set_state(before)
