"""A quantised MiniMax-M3, images and drafts included, against its dequantised weights.

A CPU keeps tokens as they are, so the bar is that of float32. The index projections of two layers
are in the model's dtype, and those of the third one in MXFP8.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ascend_attention.layers.qkv_indexer import AscendMiniMaxM3IndexerLinear
from ascend_models_minimax.testing import M3_SPECS, M3Oracle, write_m3_checkpoint
from ascend_models_minimax.testing.processor_files import IMAGE, write_processor_files
from ascend_models_minimax.testing.quantized_m3 import quantise_m3_checkpoint
from ascend_ops_core.quantized_weights.weight import QuantizedWeight
from ascend_vllm_plugin.planning.block_pool import caches_of, pool_of
from ascend_vllm_plugin.planning.source import read_model

from .harness import Engine, EnginePool, Request
from .test_minimax_m3 import assert_parity, requests_of
from .test_minimax_m3_vision import SETTINGS, assert_equal, picture, seen_by_transformers, words

pytestmark = pytest.mark.engine

SPEC = replace(M3_SPECS["m3"], dense_intermediate_size=96)


def test_equals_the_dequantised_model(engines: EnginePool, tmp_path: Path) -> None:
    engines.close()
    plain = write_m3_checkpoint(SPEC, tmp_path / "plain")
    quantised, dequantised = tmp_path / "quantised", tmp_path / "dequantised"
    quantise_m3_checkpoint(plain, quantised, dequantised, "mxfp8_index_kept")
    oracle = M3Oracle(dequantised)
    drafts = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}}
    engine = Engine(write_processor_files(quantised), **SETTINGS, **drafts)
    try:
        text = engine.runner.model.language_model
        apart = [n for n, m in text.named_modules() if isinstance(m, AscendMiniMaxM3IndexerLinear)]
        assert apart == [f"model.layers.{i}.self_attn.indexer_proj" for i in (1, 4)]
        assert isinstance(text.model.layers[1].self_attn.qkv_proj.weight, QuantizedWeight)
        planned = pool_of(
            caches_of(read_model(quantised).spec, dtype=torch.float32, device="cpu", draft=True),
            draft=True,
        )
        blocks = engine.engine.vllm_config.cache_config.num_gpu_blocks
        held = sum(cache.numel() * cache.itemsize for cache in engine.caches.values())
        assert held == blocks * planned.stride
        shapes = [(1, 12, 0), (17, 8, 0), (129, 8, 1), (200, 8, 2)]
        assert_parity(engine, oracle, requests_of(oracle, shapes))
        assert engine.metric("vllm:spec_decode_num_accepted_tokens") > 0
        prompt, image = [*words(20, 1), IMAGE, *words(5, 2)], picture(45, 61, 3)
        (result,) = engine.run([Request(prompt, 6, media={"image": [image]})])
        assert_equal(oracle, *seen_by_transformers(prompt, [image]), result)
    finally:
        engine.close()
