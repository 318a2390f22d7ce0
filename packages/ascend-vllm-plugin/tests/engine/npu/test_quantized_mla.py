"""Quantised DeepSeek-V3, V3.2 and GLM-5 through the NPU path, where tokens are quantised as well.

Mean distances to transformers with the dequantised weights in float32. What quantising tokens may
add has the bar of ``test_quantized``; a token that is selected for another, by bfloat16 or by keys
of eight bits, adds what it does in transformers. A scale of the wrong block or channel moves logits
by about one.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_models_deepseek.testing import random_prompt
from ascend_models_deepseek.testing.oracle_v3 import V3Oracle
from ascend_models_deepseek.testing.oracle_v32 import V32Oracle
from ascend_models_deepseek.testing.quantized_v3 import quantise_v3_checkpoint
from ascend_models_deepseek.testing.tiny_v3 import V3_SPECS, write_v3_checkpoint
from ascend_models_deepseek.testing.tiny_v32 import V32_SPECS, write_v32_checkpoint
from ascend_models_deepseek.testing.tolerances import EIGHT_BIT_MEAN_RATIO

from ..harness import Engine, EnginePool, Request

pytestmark = pytest.mark.engine_npu

SIZES: dict[str, Any] = {
    "moe_intermediate_size": 128,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "q_lora_rank": 128,
}
SPECS: dict[str, Any] = {
    "v3": replace(V3_SPECS["v3"], **SIZES),
    # The published widths of latents and indexer keys, which int8 latents need.
    "v32": replace(V32_SPECS["v32_wide"], **SIZES),
    "glm": replace(V32_SPECS["glm"], **SIZES),
}
LENGTHS = (1, 5, 130)
COUNT = 6


def checkpoint(name: str, layout: str, folder: Path) -> tuple[Path, Path]:
    """The quantised checkpoint, and the dequantised one."""
    write = write_v3_checkpoint if name == "v3" else write_v32_checkpoint
    plain = write(SPECS[name], folder / "plain")
    quantise_v3_checkpoint(plain, folder / "quantised", folder / "dequantised", layout)
    return folder / "quantised", folder / "dequantised"


@pytest.mark.usefixtures("family")
@pytest.mark.parametrize(
    ("name", "layout", "family_name", "config", "bar"),
    [
        ("v3", "w8a8", "A3", {}, 0.1),
        ("v32", "modelslim_mixed", "A3", {"cache_dtype": "family"}, 0.1),
        ("glm", "fp8_mixed", "A5", {"cache_dtype": "model"}, 0.2),
    ],
)
def test_logits_are_near_the_dequantised_model(
    engines: EnginePool,
    tmp_path: Path,
    name: str,
    layout: str,
    family_name: str,
    config: dict[str, str],
    bar: float,
) -> None:
    """ModelSlim's FAKQuant makes V3.2's latents int8."""
    engines.close()
    quantised, dequantised = checkpoint(name, layout, tmp_path)
    engine = Engine(
        quantised, dtype="bfloat16", additional_config=config | {"device_family": family_name}
    )
    try:
        latents = {n: c.dtype for n, c in engine.caches.items() if n.endswith("latent_cache")}
        expected = torch.int8 if name == "v32" else torch.bfloat16
        assert set(latents.values()) == {expected}
        vocab = SPECS[name].vocab_size
        requests = [Request(random_prompt(n, vocab, seed=n), COUNT) for n in LENGTHS]
        results = engine.run(requests)
    finally:
        engine.close()
    oracle = (V3Oracle if name == "v3" else V32Oracle)(dequantised)
    sequences = [[*r.prompt, *o.tokens[:-1]] for r, o in zip(requests, results, strict=True)]
    exact = [oracle.logits(ids)[-COUNT:] for ids in sequences]
    distances = [
        float((result.logits - logits).abs().mean())
        for result, logits in zip(results, exact, strict=True)
    ]
    selected = [0.0] * len(exact)
    if name != "v3":
        rounded = V32Oracle(dequantised, torch.bfloat16)
        eight = config["cache_dtype"] == "family"
        with rounded.eight_bit_keys(torch.int8, torch.float16) if eight else nullcontext():
            selected = [
                float((rounded.logits(ids)[-COUNT:] - logits).abs().mean())
                for ids, logits in zip(sequences, exact, strict=True)
            ]
    print(f"{name} {layout} on {family_name}: {distances}, transformers {selected}")
    for ours, theirs in zip(distances, selected, strict=True):
        assert ours < bar + EIGHT_BIT_MEAN_RATIO * theirs


def test_float8_on_a_family_without_it_is_refused(engines: EnginePool, tmp_path: Path) -> None:
    engines.close()
    quantised, _ = checkpoint("glm", "fp8", tmp_path)
    with pytest.raises(Exception, match=re.escape("A3 has no float8")):
        Engine(quantised, dtype="bfloat16")
