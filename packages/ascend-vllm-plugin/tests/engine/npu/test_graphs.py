"""Captured decode steps on the simulated NPU give the tokens that steps without graphs give."""

from __future__ import annotations

from typing import Any

import pytest
from ascend_models_deepseek.testing import random_prompt
from ascend_ops_core.static_buffers import StaticBufferError
from ascend_ops_core.testing.simulated_npu import counters

from ..harness import Checkpoints, EnginePool, Request, assert_all_match

pytestmark = pytest.mark.engine_npu

SPEC = "mixed"
VOCAB = 512
GRAPHS: dict[str, Any] = {
    "enforce_eager": False,
    "max_num_seqs": 8,
    "compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [2, 4]},
}
DRAFTING: dict[str, Any] = GRAPHS | {
    "compilation_config": {
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": [3, 6, 12],
    },
    "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
}
# The third joins while others decode, the fourth lets the batch outgrow the largest graph's 4 rows.
SHAPES = ((1, 40, 0), (127, 30, 0), (129, 24, 3), (5, 20, 6), (60, 12, 8), (250, 12, 12))


@pytest.fixture(params=["A3", "A5"])
def config(request: pytest.FixtureRequest, family: None) -> dict[str, Any]:
    """Experts in float32 are torch_npu's on A3, and Triton's on A5."""
    return {"device_family": request.param}


def test_replays_give_the_tokens_of_transformers(
    engines: EnginePool, checkpoints: Checkpoints, config: dict[str, Any]
) -> None:
    engine = engines.get(SPEC, **GRAPHS, additional_config=config)
    wrapper = engine.runner.model
    assert wrapper.captured_sizes == [2, 4]
    requests = [Request(random_prompt(n, VOCAB, seed=n), count, at) for n, count, at in SHAPES]
    before = counters()
    results = engine.run(requests)
    done = counters() - before
    assert done.replays >= 15
    assert_all_match(checkpoints.oracle(SPEC), requests, results)
    engines.close()


def test_drafts_are_verified_by_graphs(
    engines: EnginePool, checkpoints: Checkpoints, config: dict[str, Any]
) -> None:
    """With two drafts a decode step has three tokens of each request."""
    engine = engines.get(SPEC, **DRAFTING, additional_config=config)
    assert engine.runner.model.captured_sizes == [3, 6, 12]
    requests = [Request(random_prompt(n, VOCAB, seed=n), count, at) for n, count, at in SHAPES]
    before = counters()
    results = engine.run(requests)
    assert (counters() - before).replays >= 10
    assert_all_match(checkpoints.oracle(SPEC), requests, results)
    engines.close()


def test_a_model_that_skips_the_draft_s_buffer_is_not_captured(
    engines: EnginePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one that fills it with a rank's share of the rows, as without an all-gather."""
    engine = engines.get(SPEC, **DRAFTING)
    wrapper = engine.runner.model
    buffers = wrapper.static_buffers
    fill = buffers.fill
    wrapper.clear_graphs()
    engine.broken = True

    def fill_share(name: str, values: Any, **_: int) -> None:
        fill(name, values[: len(values) // 2])

    monkeypatch.setattr(buffers, "fill", fill_share)
    shared = r"graph of 12 tokens fills 6 rows of static buffer 'mtp_hidden'.*all-gather them"
    with pytest.raises(StaticBufferError, match=shared):
        engine.runner.capture_model()
    assert wrapper.captured_sizes == []

    monkeypatch.setattr(buffers, "fill", lambda *_, **__: None)
    with pytest.raises(StaticBufferError, match=r"graph of 12 tokens never fills .* mtp_hidden"):
        engine.runner.capture_model()
    assert wrapper.captured_sizes == []


def test_a_skipped_all_gather_ends_a_step_without_a_graph(
    engines: EnginePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines.get(SPEC, **DRAFTING)
    model = engine.runner.get_model()
    forward = model.model.forward

    def without_gather(*given: Any) -> Any:
        hidden, streams, aux = forward(*given)
        return hidden, streams[: len(streams) // 2], aux

    monkeypatch.setattr(model.model, "forward", without_gather)
    engine.broken = True
    with pytest.raises(Exception, match=r"20 rows for static buffer 'mtp_hidden' in a step of 40"):
        engine.generate(random_prompt(40, VOCAB, seed=1), 2)
