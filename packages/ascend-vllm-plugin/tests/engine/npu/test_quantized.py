"""Quantised checkpoints through the NPU path, where tokens are quantised as well.

Logits of the tiny checkpoints have a standard deviation of about one. The bars are mean distances
to transformers with the dequantised weights in float32, so they hold what quantising tokens and
bfloat16 add; a scale of the wrong block or channel moves logits by about one.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ascend_models_deepseek.testing import Oracle, TinyV4Spec, random_prompt, write_checkpoint
from ascend_models_deepseek.testing.quantized_v4 import quantise_checkpoint

from ..harness import Engine, EnginePool, Request

pytestmark = pytest.mark.engine_npu

SPEC = TinyV4Spec(
    seed=5,
    compress_ratios=(0, 4, 128),
    num_hash_layers=1,
    moe_intermediate_size=128,
    q_lora_rank=128,
    o_lora_rank=64,
)
LENGTHS = (1, 5, 130)
COUNT = 6


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(SPEC, tmp_path_factory.mktemp("plain"))


@pytest.mark.usefixtures("family")
@pytest.mark.parametrize(
    ("layout", "family_name", "bar"),
    [("w8a8", "A3", 0.1), ("w4a8", "A3", 0.1), ("flash", "A5", 0.2)],
)
def test_logits_are_near_the_dequantised_model(
    engines: EnginePool, plain: Path, tmp_path: Path, layout: str, family_name: str, bar: float
) -> None:
    engines.close()
    quantised, dequantised = tmp_path / "quantised", tmp_path / "dequantised"
    quantise_checkpoint(plain, quantised, dequantised, layout)
    config = {"cache_dtype": "model", "device_family": family_name}
    engine = Engine(quantised, dtype="bfloat16", additional_config=config)
    try:
        requests = [Request(random_prompt(n, SPEC.vocab_size, seed=n), COUNT) for n in LENGTHS]
        results = engine.run(requests)
    finally:
        engine.close()
    oracle = Oracle(dequantised)
    distances = [
        float((result.logits - oracle.picked_logits(one.prompt, result.tokens)).abs().mean())
        for one, result in zip(requests, results, strict=True)
    ]
    print(f"{layout} on {family_name}: {distances}")
    assert max(distances) < bar


def test_float8_on_a_family_without_it_is_refused(
    engines: EnginePool, plain: Path, tmp_path: Path
) -> None:
    engines.close()
    quantise_checkpoint(plain, tmp_path / "quantised", tmp_path / "dequantised", "flash_base")
    with pytest.raises(Exception, match=re.escape("A3 has no float8")):
        Engine(tmp_path / "quantised", dtype="bfloat16")
