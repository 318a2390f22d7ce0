"""What oracles remember of greedy continuations, and that they find the same with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from ascend_ops_core.testing.language_models import Greedy, Said, greedy_in_transformers

VOCABULARY = 11


class Counting:
    """A model whose best token after a sequence is its sum; it notes the tokens of every call."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, input_ids: torch.Tensor, use_cache: bool, cache: Any = None) -> Any:
        assert use_cache
        piece = input_ids[0].tolist()
        self.calls.append(len(piece))
        ids = [*(cache or []), *piece]
        sums = [sum(ids[: i + 1]) % VOCABULARY for i in range(len(ids) - len(piece), len(ids))]
        logits = torch.nn.functional.one_hot(torch.tensor(sums), VOCABULARY).double()
        return SimpleNamespace(cache=ids, logits=logits[None])


def test_what_is_known_runs_with_the_prompt() -> None:
    prompt, expected = [1, 2, 3], [6, 1, 2, 4, 8, 5, 10]
    model, said = Counting(), Said()
    assert greedy_in_transformers(model, prompt, 4, said).tokens == expected[:4]
    assert model.calls == [3, 1, 1, 1]
    assert greedy_in_transformers(model, prompt, 2, said).tokens == expected[:2]
    assert model.calls == [3, 1, 1, 1]
    found = greedy_in_transformers(model, prompt, 7, said)
    assert model.calls == [3, 1, 1, 1, 7, 1, 1]
    assert found.tokens == expected
    assert found.logits.argmax(-1).tolist() == expected
    assert found.logits.dtype == torch.float32


def test_wrong_continuations_are_not_kept_and_not_believed() -> None:
    prompt, model, said = [1, 2, 3], Counting(), Said()
    rows = torch.nn.functional.one_hot(torch.tensor([6, 2]), VOCABULARY).float()
    said.keep(prompt, Greedy([6, 1], rows))
    assert said.tokens(prompt) == []
    said.keep(prompt, Greedy([6, 2], rows))
    assert said.tokens(prompt) == [6, 2]
    assert greedy_in_transformers(model, prompt, 3, said).tokens == [6, 1, 2]
    assert said.tokens(prompt) == [6, 1, 2]


def test_clear_logits_are_those_of_tokens_that_begin_alike() -> None:
    prompt, said = [5], Said()
    rows = torch.nn.functional.one_hot(torch.tensor([4, 9, 7]), VOCABULARY).float()
    said.keep(prompt, Greedy([4, 9, 7], rows))
    assert said.clear_logits(prompt, [4, 9]) is None
    said.keep(prompt, Greedy([4, 9, 7], rows), clear=True)
    assert torch.equal(said.clear_logits(prompt, [4, 9]), rows[:2])
    assert said.clear_logits(prompt, [4, 8]) is None
    assert said.clear_logits([4], [9]) is None
