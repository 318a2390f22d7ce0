"""Tokens and logits of the engine on the simulated NPU against transformers."""

from __future__ import annotations

import pytest
import torch
from ascend_attention.caches import DEVICE_CACHES
from ascend_models_deepseek.testing import random_prompt
from ascend_ops_core.devices import current_facts

from ..harness import Checkpoints, EnginePool, Request, assert_all_match

pytestmark = pytest.mark.engine_npu

SHAPES = [(1, 8, 0), (129, 4, 0), (17, 10, 1), (255, 4, 2), (128, 6, 3), (370, 8, 4)]


def ragged(vocab: int) -> list[Request]:
    """Requests that join and finish at different steps."""
    return [
        Request(random_prompt(length, vocab, seed=100 + length), count, join_at)
        for length, count, join_at in SHAPES
    ]


@pytest.mark.parametrize("name", ["mixed", "wide_window"])
def test_a_ragged_batch(engines: EnginePool, checkpoints: Checkpoints, name: str) -> None:
    engine = engines.get(name)
    devices = {cache.device for cache in engine.caches.values()}
    assert devices == {torch.device("npu", 0)}
    requests = ragged(checkpoints.spec(name).vocab_size)
    results = engine.run(requests)
    assert len({result.finished_at for result in results}) >= 3
    assert_all_match(checkpoints.oracle(name), requests, results)


@pytest.mark.usefixtures("family")
@pytest.mark.parametrize("family_name", ["A2", "A5"])
def test_other_device_families(
    engines: EnginePool, checkpoints: Checkpoints, family_name: str
) -> None:
    """Their operators, and their blocks of tokens, chosen by `additional_config`."""
    engine = engines.get("mixed", additional_config={"device_family": family_name})
    assert current_facts().family == family_name
    blocks = DEVICE_CACHES[family_name].block_sizes[256]
    rows = {name.split(".")[-1]: cache.shape[1] for name, cache in engine.caches.items()}
    assert rows["swa_cache"] == blocks.sliding_window
    sizes = {
        cache.shape[1] for name, cache in engine.caches.items() if name.endswith("state_cache")
    }
    assert sizes == {blocks.state_c4, blocks.state_c128}
    requests = ragged(512)[:3]
    assert_all_match(checkpoints.oracle("mixed"), requests, engine.run(requests))
    engines.close()
