"""What a draft reads behind a chunk of a prompt, and what vLLM shows it there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.engine

PROMPT = list(range(20, 30))
VOCABULARY = 100


class Buffer:
    """vLLM's pair of buffers, on the host alone."""

    def __init__(self, size: int) -> None:
        self.np = np.zeros(size, dtype=np.int32)
        self.gpu = torch.from_numpy(self.np)

    def copy_to_gpu(self, count: int) -> None:
        pass


def runner_of(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, Any]:
    """A runner with a proposer in the middle of three requests, its batch, and their states.

    The first has read a chunk of its prompt and four tokens remain, the second and the third all
    of theirs; for the third nothing valid was sampled.
    """
    from ascend_specdec.ops.draft_inputs import next_tokens_padded
    from vllm.v1.spec_decode import llm_base_proposer as upstream

    class Kernel:
        def __getitem__(self, grid: Any) -> Any:
            return lambda sampled, discarded, backup, found, counts, size, *rest, **constants: (
                next_tokens_padded(found, counts, sampled, discarded, backup[:3], size)
            )

    monkeypatch.setattr(upstream, "eagle_prepare_next_token_padded_kernel", Kernel())
    drafter = object.__new__(upstream.SpecDecodeBaseProposer)
    drafter.backup_next_token_ids = Buffer(8)  # type: ignore[assignment]
    states = {
        name: SimpleNamespace(get_token_id=lambda place, text=text: text[place])
        for name, text in (("a", PROMPT), ("b", PROMPT[:3]), ("c", PROMPT[:5]))
    }
    batch = SimpleNamespace(
        num_reqs=3,
        req_ids=list(states),
        vocab_size=VOCABULARY,
        num_tokens_no_spec=np.array([10, 3, 5, 99]),
    )
    runner = SimpleNamespace(
        drafter=drafter,
        optimistic_seq_lens_cpu=torch.tensor([6, 3, 5, 99], dtype=torch.int32),
        discard_request_mask=SimpleNamespace(np=np.array([True, False, False, True])),
    )
    return runner, batch, states


def next_tokens(runner: Any, batch: Any, states: Any) -> list[int]:
    sampled = torch.tensor([[50, -1], [51, 52], [-1, -1]])
    mask = torch.from_numpy(runner.discard_request_mask.np[:3])
    found, counts = runner.drafter.prepare_next_token_ids_padded(sampled, states, batch, mask)
    assert counts.tolist() == [0, 2, 0]
    return list(found.tolist())


def test_the_next_token_of_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    from ascend_specdec.vllm.chunked_prompts import show_next_prompt_tokens

    runner, batch, states = runner_of(monkeypatch)
    show_next_prompt_tokens(runner)
    assert next_tokens(runner, batch, states) == [PROMPT[6], 52, PROMPT[4]]
    assert batch.num_tokens_no_spec.tolist() == [10, 3, 5, 99]


def test_upstream_still_shows_the_last_token_of_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    assert next_tokens(*runner_of(monkeypatch))[0] == PROMPT[-1], (
        "vLLM shows drafts another token behind a chunk: see whether show_next_prompt_tokens is "
        "still needed"
    )


def test_a_runner_whose_draft_reads_no_tokens() -> None:
    from ascend_specdec.vllm.chunked_prompts import show_next_prompt_tokens

    show_next_prompt_tokens(SimpleNamespace())
    runner = SimpleNamespace(drafter=SimpleNamespace())
    show_next_prompt_tokens(runner)
    assert not vars(runner.drafter)
