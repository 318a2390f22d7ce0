"""Caches of a draft with ordinary attention beside DeepSeek-V4's, as vLLM groups them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_ops_core import InvalidInputError

pytestmark = pytest.mark.engine


def specs(**last: Any) -> dict[str, Any]:
    """Two compressed caches of different rows, two windows, and a draft's keys and values."""
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        MLAAttentionSpec,
        SlidingWindowMLASpec,
        SlidingWindowSpec,
    )

    common: dict[str, Any] = {"num_kv_heads": 1, "head_size": 64, "dtype": torch.float32}
    window = {**common, "block_size": 64, "sliding_window": 64}
    kind: Any = SlidingWindowSpec if "sliding_window" in last else FullAttentionSpec
    draft = {"block_size": 256, "num_kv_heads": 2, "head_size": 32, "dtype": torch.float32}
    return {
        "layers.0.swa_cache": SlidingWindowMLASpec(**window),
        "layers.1.swa_cache": SlidingWindowMLASpec(**window),
        "layers.1.compressed_cache": MLAAttentionSpec(
            **common, block_size=256, compress_ratio=4, model_version="deepseek_v4"
        ),
        "layers.2.compressed_cache": MLAAttentionSpec(
            **common, block_size=256, compress_ratio=128, model_version="deepseek_v4"
        ),
        "layers.3.attn": kind(**draft | last),
    }


@pytest.fixture(params=["ours", "upstream"])
def group(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's function, and ours in its place."""
    from ascend_vllm_plugin.compat.draft_caches import WithDrafts, keep_draft_caches
    from vllm.v1.core import kv_cache_utils

    name = "group_and_unify_kv_cache_specs"
    there = getattr(kv_cache_utils, name)
    monkeypatch.setattr(kv_cache_utils, name, getattr(there, "upstream", there))
    if request.param == "ours":
        keep_draft_caches()
        keep_draft_caches()
        ours = getattr(kv_cache_utils, name)
        assert isinstance(ours, WithDrafts)
        assert not isinstance(ours.upstream, WithDrafts)
    scheduler = SimpleNamespace(disable_hybrid_kv_cache_manager=False)
    config: Any = SimpleNamespace(
        scheduler_config=scheduler, speculative_config=SimpleNamespace(use_eagle=lambda: True)
    )
    return request.param, lambda given: kv_cache_utils.get_kv_cache_groups(config, given)


def test_keys_and_values_are_where_every_token_is_kept(group: Any) -> None:
    """Upstream still leaves them out; else remove ascend_vllm_plugin/compat/draft_caches.py."""
    whose, groups_of = group
    groups = groups_of(specs())
    names = [sorted(one.layer_names) for one in groups]
    drafted = ["layers.3.attn"] if whose == "ours" else []
    assert names[0] == ["layers.1.compressed_cache", "layers.2.compressed_cache", *drafted]
    assert [one.is_eagle_group for one in groups] == [whose == "ours", *(False for _ in groups[1:])]
    pages = [spec.page_size_bytes for spec in groups[0].kv_cache_spec.kv_cache_specs.values()]
    rows = [256 // 4 * 64 * 4, 256 // 128 * 64 * 4]
    assert pages == [*rows, *(256 * 2 * 2 * 32 * 4 for _ in drafted)]


@pytest.mark.parametrize("last", [{"sliding_window": 128}, {"head_size_v": 16}], ids=str)
def test_caches_without_a_place_are_refused(group: Any, last: dict[str, Any]) -> None:
    whose, groups_of = group
    if whose == "ours":
        with pytest.raises(InvalidInputError, match=r"layers\.3\.attn.*keys and values of one"):
            groups_of(specs(**last))


def test_other_models_are_left_to_vllm(group: Any) -> None:
    _, groups_of = group
    alone = {name: spec for name, spec in specs().items() if name == "layers.3.attn"}
    (only,) = groups_of(alone)
    assert only.kv_cache_spec == alone["layers.3.attn"]
