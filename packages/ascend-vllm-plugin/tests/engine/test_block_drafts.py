"""DFlash2 and DSpark drafts of a trained Qwen3: greedy tokens, acceptance, and the law of draws."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from .block_drafts import (
    TARGET,
    assert_accepted_as_the_oracle,
    assert_as_without_drafts,
    said,
    start,
    story,
    target,
)
from .harness import Engine, Request
from .speculation import check_every_width, check_planned

pytestmark = pytest.mark.engine

DRAFTS = {"dflash2": 7, "dspark": 7}
SETTINGS = {
    # Few blocks, so that a batch of long requests does not fit.
    "dflash2": {"block_size": 32, "num_gpu_blocks_override": 20, "enable_prefix_caching": True},
    "dspark": {
        "max_num_seqs": 64,
        "speculative": {
            "rejection_sample_method": "block",
            "draft_sample_method": "probabilistic",
        },
    },
}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafts")


@pytest.fixture(scope="module", params=list(DRAFTS))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def engine(kind: str, in_process: None, scratch: Path) -> Iterator[Engine]:
    engine = start(kind, DRAFTS[kind], scratch, **SETTINGS[kind])
    yield engine
    engine.close()


def ragged(seed: int) -> list[Request]:
    """Lengths around a block of the cache, joining and finishing at different steps."""
    shapes = ((1, 12, 0), (31, 9, 0), (100, 16, 1), (128, 5, 2))
    return [Request(story(n, seed + n), count, at) for n, count, at in shapes]


def test_a_ragged_batch_in_chunks(engine: Engine, kind: str, scratch: Path) -> None:
    """As many drafts stand as plain torch says, whatever is in the batch."""
    with engine.scheduling_at_most(50):
        accepted = assert_accepted_as_the_oracle(engine, kind, scratch, DRAFTS[kind], ragged(0))
    assert accepted > 1, "a trained draft is right more often than that"


def test_every_number_of_drafts(engine: Engine) -> None:
    requests = [Request(story(1, 21), 8), Request(story(45, 22), 8)]
    check_every_width(engine, requests, [said(one.prompt, one.count) for one in requests])


def test_memory_is_what_was_planned(engine: Engine) -> None:
    check_planned(engine, TARGET, "cpu")


def test_a_context_that_fills_up_inside_a_block(engine: Engine, kind: str, scratch: Path) -> None:
    """Beside others, whose drafts go on."""
    requests = [Request(story(256 - 9, 5), 9), Request(story(8, 6), 40)]
    assert_as_without_drafts(requests, engine.run(requests))


def test_a_stop_token_inside_a_draft(engine: Engine) -> None:
    prompt = story(24, 7)
    whole = engine.run([Request(prompt, 20)])[0].tokens
    stop = whole[9]
    cut = engine.run([Request(prompt, 20, sampling={"stop_token_ids": [stop]})])[0].tokens
    assert cut == whole[: whole.index(stop) + 1]


def test_greedy_beside_random(engine: Engine) -> None:
    requests = [
        Request(story(20, 8), 16),
        Request(story(30, 9), 16, sampling={"temperature": 1.0, "seed": 4}),
        Request(story(40, 10), 16, sampling={"temperature": 0.8, "top_k": 1}),
    ]
    results = engine.run(requests)
    assert_as_without_drafts(requests[::2], results[::2])


def test_a_seed_decides_whatever_the_neighbours(engine: Engine) -> None:
    """Who all have one: vLLM's sampler for a CPU heeds seeds in no other batch."""
    requests = [
        Request(story(30, seed), 16, sampling={"temperature": 1.0, "seed": seed})
        for seed in (11, 9, 12)
    ]
    beside = engine.run(requests)[1]
    assert engine.run([requests[1]])[0].tokens == beside.tokens


def test_prefix_hits_and_preemption(engine: Engine, kind: str) -> None:
    if kind != "dflash2":
        return
    again = Request(story(200, 11), 12)
    assert [engine.run([again])[0].cached > 0 for _ in range(2)] == [False, True]
    before = engine.metric("vllm:num_preemptions")
    requests = [Request(story(120, 12 + i), 24) for i in range(4)]
    results = engine.run([*requests, again])
    assert engine.metric("vllm:num_preemptions") > before
    assert_as_without_drafts([*requests, again], results)


def test_drawn_tokens_have_the_law_of_the_target(engine: Engine, kind: str) -> None:
    """The place of every drawn token in its distribution is uniform, over more than 20,000."""
    if kind != "dspark":
        return
    from vllm import SamplingParams

    prompts = [story(12, 100 + i) for i in range(16)]
    count, copies = 40, 33
    params = SamplingParams(max_tokens=count, temperature=1.0, detokenize=False, ignore_eos=True)
    given = [{"prompt_token_ids": prompt} for prompt in prompts for _ in range(copies)]
    outputs = engine.llm.generate(given, params, use_tqdm=False)
    rows = torch.tensor([[*one.prompt_token_ids, *one.outputs[0].token_ids] for one in outputs])
    with torch.no_grad():
        logits = torch.cat([target()(input_ids=part).logits for part in rows.split(66)])
    chance = logits[:, 11:-1].double().softmax(-1)
    drawn = rows[:, 12:].unsqueeze(-1)
    mass = chance.gather(-1, drawn).squeeze(-1)
    below = chance.cumsum(-1).gather(-1, drawn).squeeze(-1) - mass
    noise = torch.rand(mass.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    place = (below + noise * mass).flatten()
    assert place.numel() >= 20_000
    bins = 50
    seen = torch.histc(place, bins, 0, 1)
    expected = place.numel() / bins
    chi_square = float(((seen - expected) ** 2 / expected).sum())
    # 49 degrees of freedom: 99.9 % lie below 85.4.
    assert chi_square < 85.4
