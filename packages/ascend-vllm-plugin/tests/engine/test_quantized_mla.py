"""Quantised DeepSeek-V3, V3.2 and GLM-5 against transformers with the dequantised weights.

A CPU keeps tokens as they are, so the bar is that of float32. Each checkpoint has all formats of
its kind, and GLM-5's and V3.2's drafts are quantised as well.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ascend_models_deepseek.testing import random_prompt
from ascend_models_deepseek.testing.oracle_v3 import V3Oracle
from ascend_models_deepseek.testing.oracle_v32 import V32Oracle
from ascend_models_deepseek.testing.quantized_v3 import quantise_v3_checkpoint
from ascend_models_deepseek.testing.tiny_v3 import V3_SPECS, write_v3_checkpoint
from ascend_models_deepseek.testing.tiny_v32 import V32_SPECS, write_v32_checkpoint

from .harness import Engine, EnginePool, Request, assert_clear_match

pytestmark = pytest.mark.engine

# Experts of 128 channels, which blocks of 128 fill; everything else lies across blocks.
SPECS: dict[str, Any] = {
    name: replace((V3_SPECS | V32_SPECS)[name], moe_intermediate_size=128, n_routed_experts=8)
    for name in ("v3", "v32", "glm")
}
LENGTHS = (1, 5, 129, 300)
COUNT = 12


@pytest.mark.parametrize(
    ("name", "layout"),
    [("v3", "compressed_mixed"), ("v32", "modelslim_mixed"), ("glm", "fp8_mixed")],
)
def test_equals_the_dequantised_model(
    engines: EnginePool, tmp_path: Path, name: str, layout: str
) -> None:
    engines.close()
    write = write_v3_checkpoint if name == "v3" else write_v32_checkpoint
    plain = write(SPECS[name], tmp_path / "plain")
    quantised, dequantised = tmp_path / "quantised", tmp_path / "dequantised"
    quantise_v3_checkpoint(plain, quantised, dequantised, layout)
    oracle = (V3Oracle if name == "v3" else V32Oracle)(dequantised)
    drafts = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}}
    engine = Engine(quantised, **drafts)
    vocab = SPECS[name].vocab_size
    try:
        assert_clear_match(
            engine,
            oracle,
            lambda seed: [Request(random_prompt(n, vocab, seed=seed + n), COUNT) for n in LENGTHS],
        )
        assert engine.metric("vllm:spec_decode_num_accepted_tokens") > 0
    finally:
        engine.close()
