"""The planner's pool of a model with recurrent states beside what vLLM makes of its layers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from ascend_attention.caches import CacheRole

from ascend_vllm_plugin.planning.block_pool import caches_of, pool_of
from ascend_vllm_plugin.planning.states import StateUse

if TYPE_CHECKING:
    import pytest

LENGTH = 4096


def assert_pool_is_vllms(
    monkeypatch: pytest.MonkeyPatch,
    spec: Any,
    state: Any,
    *,
    device: str,
    kernel_blocks: int,
    attention: dict[str, Any],
    role: CacheRole,
    spec_of: Callable[[Any, int], Any],
    ranks: int,
    drafts: int,
    prefix_caching: bool,
) -> None:
    """Compare block, page and groups with vLLM's own functions.

    Args:
        monkeypatch: of the test.
        spec: the model.
        state: shapes and dtypes of a recurrent state.
        device: whose caches are planned.
        kernel_blocks: block size that the device's kernels take.
        attention: ``use_mla``, ``heads`` and ``width`` of the other layers' caches.
        role: of these.
        spec_of: their spec, from a planned kind and the tokens of a block.
        ranks: that share the heads.
        drafts: tokens of a step.
        prefix_caching: whether states are kept for prefixes.
    """
    from vllm.platforms.interface import Platform
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.kv_cache_interface import MambaSpec

    model = SimpleNamespace(
        get_mamba_state_shape_from_config=lambda _: state.shapes,
        get_mamba_state_dtype_from_config=lambda _: state.dtypes,
    )
    registry = SimpleNamespace(resolve_model_cls=lambda *_, **__: (model, ""))
    monkeypatch.setattr("vllm.model_executor.models.ModelRegistry", registry)
    cache = SimpleNamespace(
        cache_dtype="auto",
        block_size=16,
        mamba_block_size=None,
        user_specified_mamba_block_size=False,
        mamba_cache_mode="align" if prefix_caching else "none",
        mamba_page_size_padded=None,
    )
    config = SimpleNamespace(
        cache_config=cache,
        model_config=SimpleNamespace(
            dtype=torch.bfloat16,
            use_mla=attention["use_mla"],
            architecture="",
            max_model_len=LENGTH,
            get_num_kv_heads=lambda _: attention["heads"],
            get_head_size=lambda: attention["width"],
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1, prefill_context_parallel_size=1
        ),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        compilation_config=SimpleNamespace(custom_ops=[], enabled_custom_ops={}),
    )
    backend: Any = SimpleNamespace(get_supported_kernel_block_sizes=lambda: [kernel_blocks])
    monkeypatch.setattr("vllm.config.vllm.set_current_vllm_config", nullcontext)
    Platform._align_hybrid_block_size(config, backend)
    caches = caches_of(
        spec,
        dtype=torch.bfloat16,
        device=device,
        draft=drafts > 0,
        ranks=ranks,
        states=StateUse(drafts, prefix_caching),
    )
    specs: dict[str, Any] = {}
    for one in caches:
        if one.kind.role is role:
            assert one.kind.block_tokens == cache.block_size
            specs[f"layers.{one.layer}"] = spec_of(one.kind, cache.block_size)
        else:
            specs[f"layers.{one.layer}"] = MambaSpec(
                shapes=state.shapes,
                dtypes=state.dtypes,
                block_size=cache.mamba_block_size or LENGTH,
                page_size_padded=cache.mamba_page_size_padded,
                mamba_cache_mode=cache.mamba_cache_mode,
                num_speculative_blocks=drafts,
            )
    groups = kv_cache_utils.get_kv_cache_groups(config, specs)
    pool = pool_of(caches, draft=drafts > 0)
    theirs = {tuple(int(layer.split(".")[1]) for layer in group.layer_names) for group in groups}
    assert theirs == {tuple(c.layer for c in group.caches) for group in pool.groups}
    page = kv_cache_utils.get_uniform_page_size([group.kv_cache_spec for group in groups])
    assert pool.stride == page * max(len(group.layer_names) for group in groups)
    admitted = kv_cache_utils._max_memory_usage_bytes_from_groups(config, groups)
    assert pool.bytes_to_admit(LENGTH, 1) == admitted
