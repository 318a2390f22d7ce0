"""Triton kernels on the simulated device: Triton's interpreter on aliased tensors."""

from __future__ import annotations

from dataclasses import replace

import torch

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.launch import Launch
from ascend_ops_core.testing.interpreter import interpret
from ascend_ops_core.testing.simulated_npu.aliases import to_cpu_alias, without_owning
from ascend_ops_core.testing.simulated_npu.counters import COUNTERS
from ascend_ops_core.testing.simulated_npu.graphs import capturing
from ascend_ops_core.testing.simulated_npu.state import installation


def execute(launch: Launch) -> None:
    """Run one launch.

    Raises:
        InvalidInputError: a tensor is not on the device, or references were chosen for kernels.
    """
    if installation().kernels != "interpreter":
        raise InvalidInputError(
            f"launch of {_name(launch)}",
            "the simulated NPU was installed with kernels='reference'",
            "Ask kernels_mode() before launching, or install it with kernels='interpreter'.",
        )
    COUNTERS.launches += 1
    aliased = {name: _alias(name, value) for name, value in launch.arguments.items()}
    graph = capturing()
    if graph is not None:
        tensors = {name: one for name, one in aliased.items() if isinstance(one, torch.Tensor)}
        for one in tensors.values():
            graph.keep_contents(one)
        unowned = {name: without_owning(one) for name, one in tensors.items()}
        again = replace(launch, arguments=aliased | unowned)
        graph.add(_name(launch), lambda: interpret(again), tensors.values())
    interpret(replace(launch, arguments=aliased))


def _name(launch: Launch) -> str:
    return str(getattr(launch.kernel, "__name__", launch.kernel))


def _alias(name: str, value: object) -> object:
    if not isinstance(value, torch.Tensor):
        return value
    if value.device.type != "npu":
        raise InvalidInputError(
            f"argument {name} on {value.device}", "a kernel's tensors are on the NPU", "Move it."
        )
    return to_cpu_alias(value)
