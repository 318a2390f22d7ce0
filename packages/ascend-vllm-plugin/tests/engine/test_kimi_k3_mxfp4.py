"""Kimi-K3 with MXFP4 experts on the real engine, against its formulas."""

from __future__ import annotations

import pytest
from ascend_models_kimi.testing import K3Oracle
from ascend_models_kimi.testing.k3_processor_files import write_k3_processor_files
from ascend_ops_core.testing.language_models import FLOAT32_LOGITS_ATOL

from .harness import Checkpoints, EnginePool, Request

pytestmark = pytest.mark.engine

NAME = "k3_mxfp4"


def test_mxfp4_experts(engines: EnginePool, checkpoints: Checkpoints) -> None:
    oracle = checkpoints.oracle(NAME)
    assert isinstance(oracle, K3Oracle)
    write_k3_processor_files(checkpoints.folder(NAME))
    engine = engines.get(NAME, skip_tokenizer_init=False)
    requests = [Request(oracle.clear_prompt(n, 8, seed=n), 8) for n in (3, 70)]
    for request, result in zip(requests, engine.run(requests), strict=True):
        ids = [*request.prompt, *result.tokens[:-1]]
        rows = oracle.logits(ids)[len(request.prompt) - 1 :]
        assert float((result.logits - rows).abs().max()) <= FLOAT32_LOGITS_ATOL
        assert rows.argmax(-1).tolist() == result.tokens
