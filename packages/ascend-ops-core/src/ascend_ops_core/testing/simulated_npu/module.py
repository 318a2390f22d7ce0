"""The module ``torch.npu`` of the simulated device, and what ``torch.accelerator`` asks."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ascend_ops_core.devices import facts_of
from ascend_ops_core.testing.simulated_npu import generators, graphs, state, statistics, streams
from ascend_ops_core.testing.simulated_npu.counters import host_waits
from ascend_ops_core.testing.simulated_npu.memory import MEMORY

_SOCS = {
    "A2": "Ascend910B3",
    "A3": "Ascend910_9382",
    "A5": "Ascend950PR_957c",
    "310P": "Ascend310P3",
}
_SOC_VERSIONS = {"A2": 220, "A3": 250, "A5": 260, "310P": 200}


class NPUModule(types.ModuleType):
    """``torch.npu``; what is not modelled raises AttributeError that says so."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"torch.npu.{name} is not modelled by the simulated NPU")


def synchronize(device: Any = None) -> None:
    """Let the host wait for a device."""
    state.index_of(device)
    host_waits("torch.npu.synchronize")


def get_device_name(device: Any = None) -> str:
    """Return the soc name."""
    state.index_of(device)
    return _SOCS[state.installation().family]


def get_device_properties(device: Any = None) -> types.SimpleNamespace:
    """Return name, memory and core counts."""
    index = state.index_of(device)
    facts = facts_of(state.installation().family)
    return types.SimpleNamespace(
        name=get_device_name(index),
        total_memory=MEMORY.devices[index].total,
        cube_core_num=facts.figure("cube_cores").value,
        vector_core_num=facts.figure("vector_cores").value,
        L2_cache_size=facts.figure("l2_bytes").value,
    )


class DeviceContext:
    """Makes a device current inside a block; -1 and None change nothing."""

    def __init__(self, device: Any) -> None:
        keep = device is None or device == -1
        self._index = state.current_device() if keep else state.index_of(device)
        self._outer: list[int] = []

    def __enter__(self) -> DeviceContext:
        self._outer.append(state.current_device())
        state.set_current_device(self._index)
        return self

    def __exit__(self, *_: Any) -> None:
        state.set_current_device(self._outer.pop())


def _seed_all(seed: int) -> None:
    for generator in generators.default_generators():
        generator.manual_seed(int(seed))


def _seed_one(seed: int) -> None:
    generators.default_generator().manual_seed(int(seed))


def _get_rng_state(device: Any = None) -> torch.Tensor:
    return generators.default_generator(state.index_of(device)).get_state()


def _set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    generators.default_generator(state.index_of(device)).set_state(new_state)


def _count() -> int:
    return state.installation().devices


def make_module() -> NPUModule:
    """Return the module, to be registered as ``torch.npu``."""
    module = NPUModule("torch.npu", "The simulated NPU.")
    contents: dict[str, Any] = {
        "__path__": [],
        "Stream": streams.Stream,
        "Event": streams.Event,
        "NPUGraph": graphs.NPUGraph,
        "graph": graphs.graph,
        "graph_pool_handle": graphs.graph_pool_handle,
        "is_current_stream_capturing": graphs.is_current_stream_capturing,
        "stream": streams.stream_context,
        "current_stream": streams.current_stream,
        "default_stream": streams.default_stream,
        "set_stream": streams.set_stream,
        "synchronize": synchronize,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "_is_in_bad_fork": lambda: False,
        "device_count": _count,
        "current_device": state.current_device,
        "set_device": state.set_current_device,
        "device": DeviceContext,
        "get_device_name": get_device_name,
        "get_device_properties": get_device_properties,
        "get_soc_version": lambda: _SOC_VERSIONS[state.installation().family],
        "manual_seed": _seed_one,
        "manual_seed_all": _seed_all,
        "seed": lambda: generators.default_generator().seed(),
        "initial_seed": lambda: generators.default_generator().initial_seed(),
        "get_rng_state": _get_rng_state,
        "set_rng_state": _set_rng_state,
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
        "is_bf16_supported": lambda including_emulation=True: True,
    }
    for name in statistics.__dict__:
        if "mem" in name or name == "empty_cache":
            contents[name] = getattr(statistics, name)
    contents.pop("MEMORY", None)
    module.__dict__.update(contents)
    return module


@contextmanager
def _device_index(device: Any) -> Iterator[None]:
    with DeviceContext(device):
        yield


def accelerator_functions() -> dict[str, Callable[..., Any]]:
    """Return what replaces the functions of ``torch.accelerator``, by name."""
    return {
        "device_count": _count,
        "is_available": lambda: True,
        "current_accelerator": lambda check_available=False: torch.device("npu"),
        "current_device_index": state.current_device,
        "current_device_idx": state.current_device,
        "set_device_index": state.set_current_device,
        "set_device_idx": state.set_current_device,
        "device_index": _device_index,
        "current_stream": streams.current_stream,
        "set_stream": streams.set_stream,
        "synchronize": synchronize,
        "empty_cache": statistics.empty_cache,
        "empty_host_cache": lambda: None,
        "get_memory_info": statistics.mem_get_info,
        "max_memory_allocated": statistics.max_memory_allocated,
        "max_memory_reserved": statistics.max_memory_reserved,
        "memory_allocated": statistics.memory_allocated,
        "memory_reserved": statistics.memory_reserved,
        "memory_stats": statistics.memory_stats,
        "reset_accumulated_memory_stats": statistics.reset_accumulated_memory_stats,
        "reset_peak_memory_stats": statistics.reset_peak_memory_stats,
    }
