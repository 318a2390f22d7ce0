"""Kimi-K3 with images and drafts on the simulated NPU, against its formulas."""

from __future__ import annotations

import pytest
import torch
from ascend_models_kimi.testing import K3Oracle
from ascend_models_kimi.testing.k3_processor_files import PLACEHOLDER, write_k3_processor_files

from ..harness import Checkpoints, Engine, EnginePool, Request
from ..test_kimi_k3_images import NAME, SETTINGS, assert_equal, expanded, picture, words

pytestmark = pytest.mark.engine_npu


def oracle_of(checkpoints: Checkpoints, name: str) -> K3Oracle:
    write_k3_processor_files(checkpoints.folder(name))
    oracle = checkpoints.oracle(name)
    assert isinstance(oracle, K3Oracle)
    return oracle


def test_an_image_and_drafts_beside_text(engines: EnginePool, checkpoints: Checkpoints) -> None:
    oracle = oracle_of(checkpoints, NAME)
    engine = engines.get(NAME, **SETTINGS)
    assert {cache.device for cache in engine.caches.values()} == {torch.device("npu", 0)}
    images = [[picture(13, 19, 1)], []]
    prompts = [[*words(9, 1), PLACEHOLDER, *words(60, 2)], words(80, 5)]
    requests = [
        Request(prompt, 8, at, media={"image": each} if each else {})
        for at, (prompt, each) in enumerate(zip(prompts, images, strict=True))
    ]
    before = engine.metric("vllm:spec_decode_num_accepted_tokens")
    with engine.scheduling_at_most(50):
        results = engine.run(requests)
    assert engine.metric("vllm:spec_decode_num_accepted_tokens") > before
    tokenizer = engine.llm.get_tokenizer()
    for prompt, each, result in zip(prompts, images, results, strict=True):
        assert_equal(oracle, *expanded(oracle, tokenizer, prompt, each), result)


def test_mxfp4_on_a_family_without_it_is_refused(
    engines: EnginePool, checkpoints: Checkpoints
) -> None:
    engines.close()
    folder = write_k3_processor_files(checkpoints.folder("k3_mxfp4"))
    with pytest.raises(Exception, match="A3 has neither float8 nor FP4"):
        Engine(folder, skip_tokenizer_init=False)
