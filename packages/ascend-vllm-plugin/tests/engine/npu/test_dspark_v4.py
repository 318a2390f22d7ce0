"""DeepSeek-V4's DSpark draft on the simulated NPU, from the target's own checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from ascend_ops_core.testing.forked_programs import ForkedPrograms
from safetensors.torch import load_file

from ..dspark_v4 import (
    BLOCK,
    DRAFT,
    TARGET,
    assert_accepted_as_the_oracle,
    assert_as_without_drafts,
    assert_every_number_of_drafts,
    assert_planned,
    assert_rows_of_the_oracle,
    join,
    oracle,
    said,
    start,
    story,
)
from ..harness import Engine, Request
from .conftest import FAMILY

pytestmark = pytest.mark.engine_npu

GENERATE = Path(__file__).parents[2] / "serve" / "generate.py"
TIMEOUT_S = 400
DRAFTS = BLOCK + 2
FEW = BLOCK - 2


@pytest.fixture(scope="module")
def engine(in_process: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = start(
        DRAFTS,
        join(tmp_path_factory.mktemp("joined")),
        additional_config={"cache_dtype": "model"},
        enable_prefix_caching=True,
        speculative={"rejection_sample_method": "block"},
        enforce_eager=False,
        compilation_config={
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": [DRAFTS + 1, 4 * (DRAFTS + 1)],
        },
    )
    yield engine
    engine.close()


def test_a_ragged_batch_in_chunks(engine: Engine) -> None:
    """As many drafts stand as plain torch says, whatever is in the batch."""
    shapes = ((1, 8, 0), (63, 9, 0), (130, 5, 1))
    requests = [Request(story(n, n), count, at) for n, count, at in shapes]
    with engine.scheduling_at_most(60):
        assert assert_accepted_as_the_oracle(engine, DRAFTS, requests) > 1


def test_every_number_of_drafts(engine: Engine) -> None:
    assert_every_number_of_drafts(engine, DRAFTS)


def test_memory_is_what_was_planned(engine: Engine) -> None:
    folder = Path(engine.engine.model_config.model)
    assert_planned(engine, folder, FAMILY)


def test_hidden_states_of_a_draft(engine: Engine) -> None:
    assert_rows_of_the_oracle(engine, DRAFTS, story(90, 3), 8)


def test_a_context_that_fills_up_and_random_neighbours(engine: Engine) -> None:
    longest = engine.engine.model_config.max_model_len
    requests = [
        Request(story(longest - 7, 5), 7),
        Request(story(8, 6), 20),
        Request(story(20, 7), 12, sampling={"temperature": 1.0, "top_k": 1}),
        Request(story(20, 8), 12, sampling={"temperature": 1.0, "seed": 1}),
    ]
    assert_as_without_drafts(requests[:3], engine.run(requests)[:3])


def test_a_prefix_hit(engine: Engine) -> None:
    request = Request(story(340, 9), 8)
    assert engine.llm.reset_prefix_cache()
    results = [engine.run([request])[0] for _ in range(2)]
    assert results[1].cached > 0
    assert_as_without_drafts([request, request], results)


def test_two_ranks_draft_as_one(programs: ForkedPrograms, tmp_path: Path) -> None:
    """Over gloo, in chunks, fewer than a block has: as many stand as plain torch says."""
    count, prompts = 10, [story(n, n) for n in (1, 70, 130)]
    settings = {
        "model": str(TARGET),
        "dtype": "float32",
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "max_model_len": 256,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 80,
        "kv_cache_memory_bytes": 1 << 25,
        "disable_log_stats": False,
        "logprobs_mode": "raw_logits",
        "max_logprobs": -1,
        "tensor_parallel_size": 2,
        "additional_config": {"cache_dtype": "model"},
        "speculative_config": {
            "method": "dspark",
            "model": str(DRAFT),
            "num_speculative_tokens": FEW,
        },
    }
    given = {"settings": settings, "prompts": prompts, "count": count, "acceptance": True}
    arguments, result = tmp_path / "arguments.json", tmp_path / "result.safetensors"
    arguments.write_text(json.dumps(given))
    programs.run(GENERATE, [str(arguments), str(result)], tmp_path / "log", TIMEOUT_S)
    stored = load_file(result)
    for i, prompt in enumerate(prompts):
        assert stored[f"tokens.{i}"].tolist() == said(prompt, count)
    found = [oracle().speculate(one, said(one, count + FEW), FEW) for one in prompts]
    rounds, accepted = sum(one.rounds for one in found), sum(sum(one.accepted) for one in found)
    assert stored["drafts"].tolist() == [rounds, FEW * rounds, accepted]
