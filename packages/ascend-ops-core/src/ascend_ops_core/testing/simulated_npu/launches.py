"""Triton kernels on the simulated device: Triton's interpreter, or definitions, on host memory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.launch import Launch
from ascend_ops_core.testing.interpreter import interpret
from ascend_ops_core.testing.simulated_npu.aliases import to_cpu_alias, without_owning
from ascend_ops_core.testing.simulated_npu.counters import COUNTERS
from ascend_ops_core.testing.simulated_npu.dispatch import on_host_memory
from ascend_ops_core.testing.simulated_npu.graphs import capturing
from ascend_ops_core.testing.simulated_npu.state import installation

logger = logging.getLogger(__name__)


def execute(launch: Launch) -> None:
    """Run one launch.

    Raises:
        InvalidInputError: a tensor is not on the device, or references were chosen for kernels.
    """
    if installation().kernels != "interpreter":
        raise InvalidInputError(
            f"launch of {_name(launch)}",
            "the simulated NPU was installed with kernels='reference'",
            "Launch through an operator, which runs its definition then, or install the device "
            "with kernels='interpreter'.",
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


def run_definition(definition: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Run an operator's definition in the place of its kernel, on the memory of npu tensors."""
    return on_host_memory(definition, args)


def announce_definitions() -> None:
    """Say once that kernels are not run."""
    logger.warning(
        "simulated NPU with kernels='reference': operators that would launch a Triton kernel run "
        "their definition in torch instead, because Triton's interpreter is slow"
    )


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
