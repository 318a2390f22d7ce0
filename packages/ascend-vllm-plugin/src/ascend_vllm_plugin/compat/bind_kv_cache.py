"""Lets a layer have several caches on an NPU.

Upstream symbol: ``vllm.v1.worker.utils.bind_kv_cache`` (0.27.1), as the model runner imports it. On
a platform out of tree it raises NotImplementedError where two caches share a layer's number, which
every layer of DeepSeek-V4 does; on CUDA, XPU and CPU it binds them.
"""

from __future__ import annotations

from typing import Any

import torch


def bind_kv_cache(
    kv_caches: dict[str, torch.Tensor],
    forward_context: dict[str, Any],
    runner_kv_caches: list[torch.Tensor],
    num_attn_module: int = 1,
) -> None:
    """Give each cache to its layer and list all of them for the runner, by layer number.

    Args:
        kv_caches: caches by layer name.
        forward_context: layers by name.
        runner_kv_caches: empty; filled here.
        num_attn_module: attention modules that share a layer's number.
    """
    from vllm.model_executor.models.utils import extract_layer_index

    assert not runner_kv_caches
    # A stable sort: caches of one layer keep the order in which the model declared them.
    for name in sorted(kv_caches, key=lambda name: extract_layer_index(name, num_attn_module)):
        runner_kv_caches.append(kv_caches[name])
    for name, cache in kv_caches.items():
        forward_context[name].bind_kv_cache(cache)


def allow_several_caches_per_layer() -> None:
    """Put :func:`bind_kv_cache` where the model runner looks; may be called repeatedly."""
    from vllm.v1.worker import gpu_model_runner

    gpu_model_runner.bind_kv_cache = bind_kv_cache
