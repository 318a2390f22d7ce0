"""What tests of models share that compare an engine with transformers.

A top-k whose last kept and first dropped score agree to within rounding is decided by the order of
additions: transformers then disagrees with itself between one forward and a chunked one. A test
prompt must have no such decision, or its logits are not defined to the tolerance they are held to.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

# Bound at import: a running vLLM CPU worker replaces torch's attribute by one that only warns.
from torch import set_num_threads

FLOAT32_LOGITS_ATOL = 1e-4
"""Largest allowed |logit - oracle logit| for a float32 engine."""

SMALLEST_SELECTION_GAP = 1e-6
"""Least distance between kept and dropped top-k scores in a sequence that is held to the bars."""

_MASKED = -1e30


@contextmanager
def oracle_run() -> Iterator[None]:
    """Run without gradients on one thread, then restore the caller's thread count.

    The models are tiny: a second thread gains nothing and, on a busy machine, waits for its core.
    """
    threads = torch.get_num_threads()
    set_num_threads(1)
    try:
        with torch.no_grad():
            yield
    finally:
        set_num_threads(threads)


@dataclass(frozen=True)
class Greedy:
    """A greedy continuation.

    Attributes:
        tokens: The generated ids.
        logits: `[len(tokens), vocab]` float32; row i is what token i was picked from.
    """

    tokens: list[int]
    logits: torch.Tensor

    @property
    def smallest_margin(self) -> float:
        """Smallest gap between the best and the second logit over all steps."""
        best = self.logits.topk(2, dim=-1).values
        return float((best[:, 0] - best[:, 1]).min())


class Said:
    """Greedy continuations that an oracle knows, so that none has to be found token by token again.

    Continuations of one prompt begin alike, so the longest one is kept.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[int, ...], Greedy] = {}
        self._clear: dict[tuple[int, ...], Greedy] = {}

    def keep(self, prompt: Sequence[int], found: Greedy, *, clear: bool = False) -> None:
        """Note a continuation, if its tokens are the best ones.

        Args:
            prompt: Its prompt.
            found: Tokens and the logits that they are picked from.
            clear: Rounding decides no selection in it.
        """
        if found.logits.argmax(-1).tolist() != found.tokens:
            return
        key = tuple(prompt)
        for known in (self._found, self._clear) if clear else (self._found,):
            if key not in known or len(known[key].tokens) < len(found.tokens):
                known[key] = found

    def forget(self, prompt: Sequence[int]) -> None:
        """Drop what is known of a prompt."""
        self._found.pop(tuple(prompt), None)
        self._clear.pop(tuple(prompt), None)

    def tokens(self, prompt: Sequence[int]) -> list[int]:
        """Return the tokens that are known to follow a prompt."""
        known = self._found.get(tuple(prompt))
        return [] if known is None else known.tokens

    def greedy(self, prompt: Sequence[int], count: int) -> Greedy | None:
        """Return a continuation by `count` tokens, None if no such is known."""
        known = self._found.get(tuple(prompt))
        if known is None or len(known.tokens) < count:
            return None
        return Greedy(known.tokens[:count], known.logits[:count])

    def clear_logits(self, prompt: Sequence[int], tokens: Sequence[int]) -> torch.Tensor | None:
        """Return the logits of a clear continuation that begins so, None if none is known."""
        known = self._clear.get(tuple(prompt))
        if known is None or known.tokens[: len(tokens)] != list(tokens):
            return None
        return known.logits[: len(tokens)]


def greedy_in_transformers(
    model: Any, prompt: Sequence[int], count: int, said: Said, **inputs: torch.Tensor
) -> Greedy:
    """Generate with transformers' cache, always the best token.

    Tokens that are known to follow run in one forward with the prompt, which must pick them again.

    Args:
        model: Of transformers.
        prompt: Ids.
        count: Tokens to generate.
        said: What is known of the model; it learns what is found.
        inputs: Of the prompt, beside its ids. Nothing is known or learned with any.
    """
    if not inputs and (known := said.greedy(prompt, count)) is not None:
        return known
    tokens = [] if inputs else said.tokens(prompt)
    out = model(input_ids=torch.tensor([[*prompt, *tokens]]), use_cache=True, **inputs)
    rows = list(out.logits[0, len(prompt) - 1 :].float())
    picked = [int(row.argmax()) for row in rows]
    if picked[:-1] != tokens:
        said.forget(prompt)
        return greedy_in_transformers(model, prompt, count, said)
    while len(picked) < count:
        out = model(input_ids=torch.tensor([picked[-1:]]), cache=out.cache, use_cache=True)
        rows.append(out.logits[0, -1].float())
        picked.append(int(rows[-1].argmax()))
    found = Greedy(picked, torch.stack(rows))
    if not inputs:
        said.keep(prompt, found)
    return found


class AmbiguousPromptError(ValueError):
    """A test prompt on which float32 rounding decides what the model selects."""


class NarrowestGap:
    """Smallest distance between a last kept and a first dropped score seen so far."""

    def __init__(self) -> None:
        self.value = float("inf")

    def see(self, scores: torch.Tensor, kept: int) -> None:
        """Take in `[..., candidates]` scores of a top-k that keeps `kept`; -inf means absent."""
        if scores.shape[-1] <= kept:
            return
        best = scores.topk(kept + 1, dim=-1).values
        gaps = (best[..., kept - 1] - best[..., kept])[best[..., kept].isfinite()]
        if gaps.numel():
            self.value = min(self.value, float(gaps.min()))


def random_prompt(length: int, vocab_size: int, seed: int = 0, lowest: int = 4) -> list[int]:
    """Draw `length` ids from `[lowest, vocab_size)`; a longer prompt extends a shorter one."""
    generator = random.Random(seed)
    return [generator.randrange(lowest, vocab_size) for _ in range(length)]


def watching(gap: NarrowestGap, forward: Any) -> Any:
    """Wrap an indexer's forward so that the scores of its top-k are seen."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        topk = torch.Tensor.topk

        def seen(scores: torch.Tensor, k: int, *rest: Any, **named: Any) -> Any:
            # transformers masks with the smallest number, not with minus infinity.
            visible = scores.masked_fill(scores < _MASKED, float("-inf"))
            torch.Tensor.topk = topk  # type: ignore[method-assign]
            try:
                gap.see(visible, k)
            finally:
                torch.Tensor.topk = seen  # type: ignore[assignment, method-assign]
            return topk(scores, k, *rest, **named)

        torch.Tensor.topk = seen  # type: ignore[assignment, method-assign]
        try:
            return forward(*args, **kwargs)
        finally:
            torch.Tensor.topk = topk  # type: ignore[method-assign]

    return wrapped


@dataclass(frozen=True)
class Speculation:
    """What greedy speculative decoding must report for one request.

    Attributes:
        rounds: Verification steps.
        drafted: Proposed tokens over all rounds.
        accepted: Proposed tokens that equalled the target's greedy choice.
    """

    rounds: int
    drafted: int
    accepted: int
