"""Drafts from what was written before: in a request's own text, and in past answers.

Oliaro et al., 2024, "SuffixDecoding: Extreme speculative decoding for emerging AI applications".
A text's last tokens are looked up in longer and longer pieces; what followed each piece is a
distribution over next tokens, which is walked greedily for as long as the product of shares
stays above a threshold. Longer pieces may draft more tokens, and of all pieces in all texts the
one whose drafts have the highest expected number of hits wins.

The paper keeps the texts as trees. Here they lie one behind the other, and a piece's places are
found from the places of its last token, so that memory grows with the tokens and not with their
pieces.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Draft", "Limits", "SuffixCache", "SuffixIndex"]

Tokens = NDArray[np.int32]

MOST_PLACES = 1024
"""Latest places of a token that are looked at."""

_END = -1
_LEAST_CAPACITY = 256


@dataclass(frozen=True)
class Limits:
    """What bounds drafts.

    Attributes:
        depth: longest piece that is looked up.
        factor: a piece of p tokens drafts at most ``factor * p``.
        least_share: product of shares below which nothing is drafted any more, in [0, 1].
    """

    depth: int = 24
    factor: float = 1.0
    least_share: float = 0.1


@dataclass(frozen=True)
class Draft:
    """Drafted tokens, and how many of them are expected to be right."""

    tokens: tuple[int, ...] = ()
    score: float = 0.0


class SuffixIndex:
    """Texts in which pieces can be looked up.

    Attributes:
        length: tokens and ends of texts that are held, forgotten ones included.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._buffer: Tokens = np.empty(_LEAST_CAPACITY, dtype=np.int32)
        self._places: dict[int, list[int]] = {}
        self.length = 0
        self._first = 0

    def append(self, tokens: Tokens) -> None:
        """Let the last text go on."""
        after = self.length + len(tokens)
        self._reserve(after)
        self._buffer[self.length : after] = tokens
        for place, token in enumerate(tokens.tolist(), self.length + 1):
            self._places.setdefault(token, []).append(place)
        self.length = after

    def end_text(self) -> None:
        """Nothing that is appended from now on follows what is there."""
        self._reserve(self.length + 1)
        self._buffer[self.length] = _END
        self.length += 1

    def forget_before(self, place: int) -> None:
        """Look up nothing in front of a place that :attr:`length` once was."""
        self._first = place
        if 2 * place > self.length:
            kept = self._buffer[place : self.length].copy()
            self._clear()
            for text in np.split(kept, np.flatnonzero(kept == _END) + 1):
                ended = bool(len(text)) and text[-1] == _END
                self.append(text[: len(text) - ended])
                if ended:
                    self.end_text()

    def since(self, place: int) -> Tokens:
        """The tokens from a place on."""
        return self._buffer[place : self.length]

    @property
    def forgotten(self) -> int:
        """Places that :meth:`forget_before` left in front."""
        return self._first

    def propose(self, pattern: Tokens, most: int, limits: Limits) -> Draft:
        """Draft what may follow ``pattern``.

        Args:
            pattern: last tokens of a text; not more than ``limits.depth`` are used.
            most: tokens to draft.
            limits: of pieces and drafts.
        """
        best = Draft()
        if most < 1 or not len(pattern):
            return best
        held = self._places.get(int(pattern[-1]), [])[-MOST_PLACES:]
        places = np.array(held, dtype=np.int64)
        # The text that the pattern ends may be one of these; nothing follows it yet.
        places = places[(places > self._first) & (places < self.length)]
        piece, looked = 1, -1
        while len(places):
            if len(places) != looked:
                looked = len(places)
                longest = self._longest_of(places, pattern, piece, limits.depth)
                room = min(most, int(limits.factor * longest))
                draft = self._walk(places, room, limits.least_share)
                if draft.score >= best.score:
                    best = draft
            piece += 1
            if piece > min(len(pattern), limits.depth):
                break
            before = places - piece
            places = places[before >= self._first]
            places = places[self._buffer[places - piece] == pattern[-piece]]
        return best

    def _longest_of(
        self, places: NDArray[np.int64], pattern: Tokens, piece: int, depth: int
    ) -> int:
        """Tokens in front of all these places that equal the last ones of the pattern."""
        longest = piece
        while longest < min(len(pattern), depth):
            before = places - longest - 1
            if before.min() < self._first:
                break
            if (self._buffer[before] != pattern[-longest - 1]).any():
                break
            longest += 1
        return longest

    def _walk(self, places: NDArray[np.int64], room: int, least_share: float) -> Draft:
        tokens: list[int] = []
        share, score = 1.0, 0.0
        while len(tokens) < room:
            following = self._buffer[places]
            known = following[following != _END]
            if not len(known):
                break
            values, counts = np.unique(known, return_counts=True)
            winner = int(counts.argmax())
            share *= float(counts[winner]) / len(places)
            if share < least_share:
                break
            tokens.append(int(values[winner]))
            score += share
            places = places[following == values[winner]] + 1
            ended = places >= self.length
            if ended.all():
                break
            places = places[~ended]
        return Draft(tuple(tokens), score)

    def _reserve(self, length: int) -> None:
        if length > len(self._buffer):
            larger = np.empty(max(length, 2 * len(self._buffer)), dtype=np.int32)
            larger[: self.length] = self._buffer[: self.length]
            self._buffer = larger


class SuffixCache:
    """The texts of running requests, each by itself, and past answers together.

    Args:
        limits: of pieces and drafts.
        most_answers: past answers that are kept, the latest; 0 for none.
    """

    def __init__(self, limits: Limits, most_answers: int) -> None:
        self.limits, self.most_answers = limits, most_answers
        self.requests: dict[str, SuffixIndex] = {}
        self.answers = SuffixIndex()
        self._prompts: dict[str, int] = {}
        self._starts: deque[int] = deque()

    def follow(self, request: str, text: Tokens, prompt: int) -> None:
        """Take in what a request's text has gained since the last time.

        Args:
            request: its name.
            text: all of it, the prompt included.
            prompt: tokens of the prompt.
        """
        index = self.requests.get(request)
        if index is None:
            index = self.requests[request] = SuffixIndex()
            self._prompts[request] = prompt
        if index.length < len(text):
            index.append(text[index.length :])

    def finish(self, request: str) -> None:
        """Keep the answer of a request that is done, and forget the rest of it."""
        index, prompt = self.requests.pop(request), self._prompts.pop(request)
        answer = index.since(prompt)
        if not self.most_answers or not len(answer):
            return
        self._starts.append(self.answers.length)
        self.answers.append(answer)
        self.answers.end_text()
        if len(self._starts) > self.most_answers:
            self._starts.popleft()
            self.answers.forget_before(self._starts[0])
            moved = self._starts[0] - self.answers.forgotten
            self._starts = deque(start - moved for start in self._starts)

    def propose(self, request: str, text: Tokens, most: int) -> Draft:
        """Draft what may follow a request's text, which :meth:`follow` has taken in."""
        pattern = text[-self.limits.depth :]
        own = self.requests[request].propose(pattern, most, self.limits)
        other = self.answers.propose(pattern, most, self.limits)
        return other if other.score > own.score else own
