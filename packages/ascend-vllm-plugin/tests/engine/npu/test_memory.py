"""The worker measures the device's memory and gives the rest to the caches."""

from __future__ import annotations

import pytest
import torch
from ascend_models_deepseek.testing import random_prompt

from ..harness import Checkpoints, EnginePool, Request, assert_all_match

pytestmark = pytest.mark.engine_npu

SPEC = "mixed"
SHARE = 0.002


def test_caches_get_what_is_left_of_the_share(
    engines: EnginePool, checkpoints: Checkpoints
) -> None:
    engine = engines.get(
        SPEC, kv_cache_memory_bytes=None, gpu_memory_utilization=SHARE, max_num_batched_tokens=256
    )
    asked = SHARE * torch.npu.mem_get_info()[1]
    caches = sum(
        {
            cache.untyped_storage().data_ptr(): cache.untyped_storage().nbytes()
            for cache in engine.caches.values()
        }.values()
    )
    assert 0.5 * asked < caches < asked
    request = Request(random_prompt(40, 512, seed=1), 4)
    assert_all_match(checkpoints.oracle(SPEC), [request], engine.run([request]))
    # Weights, caches and the largest step together stay within the share.
    assert torch.npu.max_memory_allocated() <= asked


def test_sleep_is_refused(engines: EnginePool) -> None:
    engine = engines.get(
        SPEC, kv_cache_memory_bytes=None, gpu_memory_utilization=SHARE, max_num_batched_tokens=256
    )
    with pytest.raises(Exception, match="sleep mode"):
        engine.llm.collective_rpc("sleep")
