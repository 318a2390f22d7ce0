"""The replaced functions of vLLM: what ours do, and whether upstream still needs them."""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Any

import pytest
import torch
from ascend_vllm_plugin.compat import device_streams
from ascend_vllm_plugin.compat.bind_kv_cache import bind_kv_cache


class Layer:
    """Takes a cache as vLLM's attention layers do."""

    def __init__(self) -> None:
        self.kv_cache: Any = None

    def bind_kv_cache(self, cache: torch.Tensor) -> None:
        self.kv_cache = cache


NAMES = ("layers.10.attn.swa_cache", "layers.2.attn.swa_cache", "layers.2.attn.state_cache")


def test_several_caches_of_a_layer_are_bound_in_order() -> None:
    caches = {name: torch.full((1,), float(i)) for i, name in enumerate(NAMES)}
    layers, listed = {name: Layer() for name in NAMES}, []
    bind_kv_cache(caches, layers, listed)
    assert all(layers[name].kv_cache is caches[name] for name in NAMES)
    assert [int(cache) for cache in listed] == [1, 2, 0]


@pytest.mark.engine
def test_upstream_still_refuses_several_caches_of_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.worker import utils

    class Elsewhere:
        def __getattr__(self, name: str) -> Any:
            return lambda *args: False

    monkeypatch.setattr(utils, "current_platform", Elsewhere())
    caches = {name: torch.zeros(1) for name in NAMES}
    with pytest.raises(NotImplementedError):
        utils.bind_kv_cache(caches, {name: Layer() for name in NAMES}, [])


@pytest.mark.engine
def test_upstream_still_asks_cuda_for_streams() -> None:
    from vllm.v1.worker import gpu_model_runner

    source = inspect.getsource(gpu_model_runner)
    used = Counter(name for name in device_streams.NAMES if f"torch.cuda.{name}(" in source)
    assert {"Stream", "Event", "current_stream", "stream"} <= used.keys(), (
        "vLLM no longer names torch.cuda there: remove ascend_vllm_plugin/compat/device_streams.py"
    )


@pytest.mark.engine
def test_upstream_still_asserts_whose_communicator_captures() -> None:
    from vllm.distributed.parallel_state import GroupCoordinator

    source = inspect.getsource(GroupCoordinator.graph_capture)
    assert "CudaCommunicator" in source
    assert "assert isinstance" in source, (
        "vLLM no longer refuses other communicators: remove "
        "ascend_vllm_plugin/compat/graph_capture.py"
    )
