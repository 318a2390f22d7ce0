"""The replaced functions of vLLM: what ours do, and whether upstream still needs them."""

from __future__ import annotations

import inspect
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_ops_core import InvalidInputError
from ascend_vllm_plugin.compat import device_streams
from ascend_vllm_plugin.compat.bind_kv_cache import bind_kv_cache
from ascend_vllm_plugin.compat.eplb_switch import allow_eplb, check_eplb


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


@pytest.mark.engine
def test_upstream_still_refuses_to_balance_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else remove ascend_vllm_plugin/compat/eplb_switch.py."""
    from vllm.config import ParallelConfig, parallel

    asked: Any = {
        "enable_eplb": True,
        "enable_expert_parallel": True,
        "tensor_parallel_size": 2,
    }
    platform = parallel.current_platform
    monkeypatch.setattr(parallel, "current_platform", getattr(platform, "_platform", platform))
    with pytest.raises(ValueError, match="only supported on CUDA devices or ROCm"):
        ParallelConfig(**asked)
    allow_eplb()
    allow_eplb()
    assert ParallelConfig(**asked).enable_eplb
    assert parallel.current_platform.device_type == platform.device_type
    with pytest.raises(ValueError, match="enable_expert_parallel must be True"):
        ParallelConfig(**asked | {"enable_expert_parallel": False})


def test_experts_of_other_models_are_not_balanced() -> None:
    def engine(asked: bool, **config: Any) -> Any:
        return SimpleNamespace(
            model_config=SimpleNamespace(hf_text_config=SimpleNamespace(**config)),
            parallel_config=SimpleNamespace(enable_eplb=asked),
        )

    check_eplb(engine(True, compress_ratios=[0, 4]))
    check_eplb(engine(False))
    with pytest.raises(InvalidInputError, match=r"enable_eplb=True.*only DeepSeek-V4.*unset"):
        check_eplb(engine(True))


@pytest.mark.engine
def test_upstream_still_warms_kernels_of_cuda_up_on_any_device() -> None:
    from vllm.model_executor.warmup import qwen_triton_warmup

    source = inspect.getsource(qwen_triton_warmup)
    assert "current_platform" not in source, (
        "vLLM looks at the platform before it warms Qwen's kernels up: remove "
        "ascend_vllm_plugin/compat/qwen_warmup.py"
    )
