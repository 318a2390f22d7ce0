"""Quantised MiniMax-M3 through the NPU path, where tokens are quantised as well.

Mean distances to transformers with the dequantised weights in float32, beside what transformers'
own bfloat16 makes of them, in which a selection can flip as well; the bars are those of
``test_quantized_mla``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ascend_models_deepseek.testing.tolerances import EIGHT_BIT_MEAN_RATIO
from ascend_models_minimax.testing import M3_SPECS, M3Oracle, write_m3_checkpoint
from ascend_models_minimax.testing.quantized_m3 import quantise_m3_checkpoint
from ascend_ops_core.testing.language_models import random_prompt

from ..harness import Engine, EnginePool, Request
from ..test_minimax_m3 import TEXT

pytestmark = pytest.mark.engine_npu

# Widths of which A5's product of 8-bit floats takes 64 at a time, and blocks that its kernels take.
SPEC = replace(
    M3_SPECS["m3"],
    hidden_size=128,
    intermediate_size=64,
    dense_intermediate_size=128,
    block_size=32,
)
LENGTHS = (1, 5, 200)
COUNT = 6


@pytest.mark.usefixtures("family")
@pytest.mark.parametrize(
    ("layout", "family_name", "bar"), [("w8a8_dynamic", "A3", 0.1), ("mxfp8_index_kept", "A5", 0.2)]
)
def test_logits_are_near_the_dequantised_model(
    engines: EnginePool, tmp_path: Path, layout: str, family_name: str, bar: float
) -> None:
    engines.close()
    plain = write_m3_checkpoint(SPEC, tmp_path / "plain")
    quantised, dequantised = tmp_path / "quantised", tmp_path / "dequantised"
    quantise_m3_checkpoint(plain, quantised, dequantised, layout)
    config = {"additional_config": {"device_family": family_name}}
    engine = Engine(quantised, dtype="bfloat16", **config, **TEXT)
    try:
        requests = [Request(random_prompt(n, 490, seed=n), COUNT) for n in LENGTHS]
        results = engine.run(requests)
    finally:
        engine.close()
    exact, rounded = M3Oracle(dequantised), M3Oracle(dequantised, torch.bfloat16)
    for request, result in zip(requests, results, strict=True):
        ids = [*request.prompt, *result.tokens[:-1]]
        truth = exact.logits(ids)[-COUNT:]
        ours = float((result.logits - truth).abs().mean())
        theirs = float((rounded.logits(ids)[-COUNT:] - truth).abs().mean())
        print(f"{layout} on {family_name}, {len(ids)} tokens: {ours}, transformers {theirs}")
        assert 0 < ours < bar + EIGHT_BIT_MEAN_RATIO * theirs
