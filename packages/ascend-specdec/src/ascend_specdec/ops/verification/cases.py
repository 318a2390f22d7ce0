"""Inputs of verification."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

F32, I32, I64 = torch.float32, torch.int32, torch.int64
RAGGED = (2, 0, 1, 5, 0, 3)
# K2 and DeepSeek-V4 draft few tokens for many requests, a block drafter many for few.
SERVED = (3,) * 256
BLOCKS = (7,) * 64
VOCABULARIES = (("odd", 63), ("tiles", 20001))


def _cumulative(new: Inputs, counts: tuple[int, ...], dtype: torch.dtype = I32) -> torch.Tensor:
    ends, total = [], 0
    for count in counts:
        total += count
        ends.append(total)
    return new.tensor(ends, dtype)


def _out(new: Inputs, counts: tuple[int, ...], extra: int = 0) -> torch.Tensor:
    return new.full(-1, len(counts), max(counts, default=0) + 1 + extra, dtype=I32)


def _expand(name: str, counts: tuple[int, ...], dtype: torch.dtype, *, large: bool = False) -> Case:
    def make(new: Inputs) -> tuple[Any, ...]:
        values = new.randint(0, 3, len(counts), dtype=dtype)
        out = new.full(7, sum(counts), dtype=dtype)
        return out, values, _cumulative(new, counts), 0.0, 1.0

    return Case(name, make, large=large)


def _chosen(new: Inputs, counts: tuple[int, ...], some: bool) -> torch.Tensor | None:
    return new.randint(0, 2, len(counts), dtype=torch.bool) if some else None


def _greedy(
    name: str,
    counts: tuple[int, ...],
    *,
    some: bool = False,
    extra: int = 0,
    dtype: torch.dtype = I32,
    large: bool = False,
) -> Case:
    def make(new: Inputs) -> tuple[Any, ...]:
        total = sum(counts)
        argmax = new.randint(0, 2, total)
        drafts = new.randint(-1, 2, total, dtype=dtype)
        bonus = new.randint(5, 9, len(counts))
        chosen = _chosen(new, counts, some)
        cumulative = _cumulative(new, counts, dtype)
        return _out(new, counts, extra), cumulative, drafts, argmax, bonus, chosen

    return Case(name, make, large=large)


def _probabilities(new: Inputs, rows: int, vocabulary: int) -> torch.Tensor:
    return (2 * new.randn(rows, vocabulary)).softmax(dim=-1)


def _drawn(
    new: Inputs, counts: tuple[int, ...], vocabulary: int, certain: bool
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Drafts with placeholders among them, their probabilities, and the target's."""
    total = sum(counts)
    p = _probabilities(new, total, vocabulary)
    q = None if certain else _probabilities(new, total, vocabulary)
    drafts = new.randint(-1, min(vocabulary, 5), total, dtype=I32)
    return drafts, q, p


def _random(
    name: str,
    counts: tuple[int, ...],
    vocabulary: int,
    *,
    certain: bool = False,
    some: bool = False,
    large: bool = False,
) -> Case:
    def make(new: Inputs) -> tuple[Any, ...]:
        drafts, q, p = _drawn(new, counts, vocabulary, certain)
        total = sum(counts)
        bonus = new.randint(0, vocabulary, len(counts))
        recovered = new.randint(0, vocabulary, total, dtype=I32)
        chosen = _chosen(new, counts, some)
        out = _out(new, counts)
        cumulative = _cumulative(new, counts)
        return out, cumulative, drafts, q, p, bonus, recovered, new.rand(total), chosen

    return Case(name, make, large=large)


def _recovered(
    name: str,
    counts: tuple[int, ...],
    vocabulary: int,
    *,
    certain: bool = False,
    scaled: bool = False,
    same: bool = False,
    large: bool = False,
) -> Case:
    """``same``: the drafts' probabilities are the target's, so nothing is left; a row has NaN."""

    def make(new: Inputs) -> tuple[Any, ...]:
        drafts, q, p = _drawn(new, counts, vocabulary, certain)
        if same:
            drafts = drafts.abs()
            p[0, :9] = float("nan")
            q = p.clone()
        noise = new.rand(len(counts), vocabulary) + 0.1
        scale = new.rand(sum(counts)) if scaled else None
        return _cumulative(new, counts), drafts, q, p, noise, scale

    return Case(name, make, large=large)


def _in_block(
    name: str,
    counts: tuple[int, ...],
    vocabulary: int,
    *,
    certain: bool = False,
    large: bool = False,
) -> Case:
    def make(new: Inputs) -> tuple[Any, ...]:
        drafts, q, p = _drawn(new, counts, vocabulary, certain)
        uniform = 0.9 * new.rand(sum(counts))
        return _cumulative(new, counts), drafts, q, p, uniform, max(counts)

    return Case(name, make, large=large)


def _written(name: str, counts: tuple[int, ...], some: bool, *, large: bool = False) -> Case:
    def make(new: Inputs) -> tuple[Any, ...]:
        total = sum(counts)
        drafts = new.randint(0, 99, total, dtype=I32)
        accepted = new.tensor([count * (i % 3) // 2 for i, count in enumerate(counts)], I32)
        recovered = new.randint(100, 199, total, dtype=I32)
        bonus = new.randint(200, 299, len(counts), dtype=I32)
        accepted = torch.minimum(accepted, new.tensor(list(counts), I32))
        chosen = _chosen(new, counts, some)
        out, cumulative = _out(new, counts), _cumulative(new, counts)
        return out, cumulative, drafts, accepted, recovered, bonus, chosen

    return Case(name, make, large=large)


CASES: dict[str, tuple[Case, ...]] = {
    "expand_to_drafts": (
        _expand("one", (1,), F32),
        _expand("ragged", RAGGED, F32),
        _expand("integers", RAGGED, I32),
        _expand("most", (128, 0, 7), F32),
        _expand("served", SERVED, F32, large=True),
        _expand("served_top_k", SERVED, I32, large=True),
    ),
    "verify_greedy": (
        _greedy("no_drafts", (0, 0)),
        _greedy("one_each", (1,) * 9, some=True),
        _greedy("ragged", RAGGED, some=True, extra=1),
        _greedy("long_ids", RAGGED, dtype=I64),
        _greedy("most", (128, 0, 7)),
        _greedy("served", SERVED, large=True),
        _greedy("served_one", (1,) * 256, some=True, large=True),
        _greedy("served_ragged", (3, 2) * 128, large=True),
    ),
    "verify_random": (
        _random("one", (1,), 2),
        _random("ragged", RAGGED, 33, some=True),
        _random("certain", RAGGED, 5, certain=True),
        _random("served", SERVED, 129280, large=True),
        _random("served_ngram", SERVED, 151936, certain=True, some=True, large=True),
    ),
    "recovered_tokens": (
        _recovered("one", (1,), 1),
        *(_recovered(name, RAGGED, size) for name, size in VOCABULARIES),
        _recovered("nothing_left", (2, 0, 1), 20001, same=True),
        _recovered("certain", RAGGED, 65, certain=True),
        _recovered("scaled", RAGGED, 65, scaled=True),
        _recovered("scaled_certain", RAGGED, 1000, certain=True, scaled=True),
        _recovered("served", SERVED, 129280, large=True),
        _recovered("served_ngram", SERVED, 151936, certain=True, large=True),
        _recovered("served_blocks", BLOCKS, 151936, scaled=True, large=True),
    ),
    "accepted_in_block": (
        _in_block("one", (1,), 2),
        *(_in_block(name, RAGGED, size) for name, size in VOCABULARIES),
        _in_block("certain", RAGGED, 65, certain=True),
        _in_block("served", BLOCKS, 151936, large=True),
        _in_block("served_certain", BLOCKS, 151936, certain=True, large=True),
    ),
    "write_accepted": (
        _written("ragged", RAGGED, some=False),
        _written("some", RAGGED, some=True),
        _written("served", BLOCKS, some=False, large=True),
    ),
}
