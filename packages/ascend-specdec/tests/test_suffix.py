"""Suffix decoding against a search in lists, and what it keeps of past answers."""

from __future__ import annotations

import random
from collections import Counter

import pytest

pytestmark = pytest.mark.engine


def followers(text: list[int], piece: list[int]) -> list[int]:
    """Places behind a piece in a text, its end included."""
    n = len(piece)
    return [i + n for i in range(len(text) - n + 1) if text[i : i + n] == piece]


def draft_of(
    text: list[int], pattern: list[int], most: int, depth: int, factor: float, least: float
) -> tuple[list[int], float]:
    """The best walk over all lengths of pieces; of equal ones, that of the longest piece."""
    best: tuple[list[int], float] = ([], 0.0)
    for n in range(1, min(depth, len(pattern)) + 1):
        places = [e for e in followers(text, pattern[-n:]) if e < len(text)]
        tokens: list[int] = []
        share, score = 1.0, 0.0
        while places and len(tokens) < min(most, int(factor * n)):
            counted = Counter(text[e] for e in places if text[e] != -1)
            if not counted:
                break
            token = min(counted, key=lambda t: (-counted[t], t))
            share *= counted[token] / len(places)
            if share < least:
                break
            tokens.append(token)
            score += share
            places = [e + 1 for e in places if text[e] == token and e + 1 < len(text)]
        if tokens and score >= best[1] - 1e-12:
            best = (tokens, score)
    return best


@pytest.mark.parametrize("seed", range(6))
def test_drafts_equal_a_search(seed: int) -> None:
    import numpy as np
    from ascend_specdec.suffix import Limits, SuffixIndex

    chosen = random.Random(seed)
    limits = Limits(
        depth=chosen.choice((1, 3, 8)), factor=chosen.choice((0.5, 1, 2)), least_share=0.1
    )
    index, text = SuffixIndex(), list[int]()
    for _ in range(60):
        more = [chosen.randrange(3) for _ in range(chosen.choice((0, 1, 2, 9)))]
        index.append(np.array(more, dtype=np.int32))
        text += more
        if chosen.random() < 0.1:
            index.end_text()
            text.append(-1)
        pattern = [chosen.randrange(3) for _ in range(9)]
        if text and chosen.random() < 0.7:
            last = max((i for i, t in enumerate(text) if t == -1), default=-1)
            pattern = text[last + 1 :] or pattern
        most = chosen.choice((1, 4))
        got = index.propose(np.array(pattern, dtype=np.int32), most, limits)
        expected = draft_of(text, pattern, most, limits.depth, limits.factor, limits.least_share)
        assert got.score == pytest.approx(expected[1])
        assert list(got.tokens) == expected[0]


def test_past_answers_are_drafted_from_and_forgotten_in_turn() -> None:
    import numpy as np
    from ascend_specdec.suffix import Limits, SuffixCache

    cache = SuffixCache(Limits(), most_answers=2)
    for name, answer in (("a", [11, 12, 13, 14]), ("b", [21, 22, 23, 24]), ("c", [31, 32, 33, 34])):
        text = np.array([1, 2, 3, *answer], dtype=np.int32)
        cache.follow(name, text[:5], 3)
        cache.follow(name, text, 3)
        cache.finish(name)
    assert not cache.requests

    def after(*tokens: int) -> tuple[int, ...]:
        text = np.array(tokens, dtype=np.int32)
        cache.follow("new", text, 1)
        draft = cache.propose("new", text, 9)
        cache.requests.clear()
        return draft.tokens

    assert after(7, 31, 32) == (33, 34)
    assert after(7, 21, 22) == (23, 24)
    assert after(7, 11, 12) == ()
    # Prompts are not answers, and no draft runs from one answer into the next.
    assert after(7, 1, 2) == ()
    assert after(7, 23, 24) == ()


def test_a_request_s_own_text_is_drafted_from() -> None:
    import numpy as np
    from ascend_specdec.suffix import Limits, SuffixCache

    cache = SuffixCache(Limits(factor=1.0), most_answers=0)
    text = np.array([5, 6, 7, 8, 9, 5, 6, 7], dtype=np.int32)
    cache.follow("a", text, 3)
    assert cache.propose("a", text, 2).tokens == (8, 9)
    # A piece of three tokens drafts three at most.
    assert cache.propose("a", text, 9).tokens == (8, 9, 5)
    cache.finish("a")
    assert cache.answers.length == 0
