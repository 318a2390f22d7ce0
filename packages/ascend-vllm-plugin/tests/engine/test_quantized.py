"""Quantised checkpoints in their real layouts against transformers with the dequantised weights.

A CPU keeps tokens as they are, so the bar is that of float32: quantisation is in the weights alone,
and both sides have the same.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from ascend_models_deepseek.testing import (
    Oracle,
    TinyV4Spec,
    random_prompt,
    write_checkpoint,
)
from ascend_models_deepseek.testing.quantized_v4 import quantise_checkpoint

from .harness import Engine, EnginePool, Request, assert_clear_match

pytestmark = pytest.mark.engine

# Experts of 128 channels, which blocks of 128 fill; everything else lies across blocks.
SPEC = TinyV4Spec(
    seed=5,
    compress_ratios=(0, 4, 128),
    num_hash_layers=1,
    moe_intermediate_size=128,
    mtp="aligned",
    residual_gain=0.2,
)
LENGTHS = (1, 5, 129, 300)
COUNT = 12


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(SPEC, tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize(
    "layout", ["flash", "flash_base", "mxfp8", "w8a8", "w4a8", "compressed_tensors"]
)
def test_equals_the_dequantised_model(
    engines: EnginePool, plain: Path, tmp_path: Path, layout: str
) -> None:
    engines.close()
    quantised, dequantised = tmp_path / "quantised", tmp_path / "dequantised"
    quantise_checkpoint(plain, quantised, dequantised, layout)
    # One of them drafts, with a draft that is quantised as well.
    drafts = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}}
    engine = Engine(quantised, **(drafts if layout == "flash" else {}))
    try:
        assert_clear_match(
            engine,
            Oracle(dequantised),
            lambda seed: [
                Request(random_prompt(n, SPEC.vocab_size, seed=seed + n), COUNT) for n in LENGTHS
            ],
        )
        if layout == "flash":
            assert engine.metric("vllm:spec_decode_num_accepted_tokens") > 0
    finally:
        engine.close()
