"""Verification against loops over requests in Python, and its law against enumeration."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_specdec.ops.verification import (
    accepted_in_block,
    expand_to_drafts,
    recovered_tokens,
    verify_block,
    verify_greedy,
    verify_random,
)

UNWRITTEN = -1
RAGGED = (2, 0, 1, 5, 0, 3)


def cumulative_of(counts: tuple[int, ...], dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(counts, dtype=dtype).cumsum(0, dtype=dtype)


def empty_rows(counts: tuple[int, ...], extra: int = 0) -> torch.Tensor:
    width = max(counts, default=0) + 1 + extra
    return torch.full((len(counts), width), UNWRITTEN, dtype=torch.int32)


def expected_rows(
    counts: tuple[int, ...],
    accepted: list[list[bool]],
    tokens: list[int],
    recovered: list[int],
    bonus: list[int],
    width: int,
) -> list[list[int]]:
    """Rows in Python, from what is accepted draft by draft."""
    rows, start = [], 0
    for request, count in enumerate(counts):
        row = []
        for i in range(count):
            if not accepted[request][i]:
                row.append(recovered[start + i])
                break
            row.append(tokens[start + i])
        else:
            row.append(bonus[request])
        rows.append(row + [UNWRITTEN] * (width - len(row)))
        start += count
    return rows


@pytest.mark.oracle("ascend_specdec::expand_to_drafts", "a loop over requests in Python")
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.int32, torch.int64, torch.bfloat16], ids=str
)
@pytest.mark.parametrize("counts", [(), (0,), (1,), (3,), RAGGED, (127, 0, 7)], ids=str)
def test_values_are_spread_over_drafts(counts: tuple[int, ...], dtype: torch.dtype) -> None:
    values = torch.arange(len(counts)).to(dtype)
    out = torch.full((sum(counts),), 77).to(dtype)
    expand_to_drafts(out, values, cumulative_of(counts), 0, 9)
    expected = [r or 9 for r, count in enumerate(counts) for _ in range(count)]
    assert out.tolist() == expected


@pytest.mark.oracle("ascend_specdec::verify_greedy", "a loop over drafts in Python")
@pytest.mark.oracle("ascend_specdec::write_accepted", "a loop over drafts in Python")
@pytest.mark.parametrize("counts", [(), (0,), (1,), (1, 1, 1), RAGGED, (127, 0, 7)], ids=str)
def test_greedy_equals_a_loop(counts: tuple[int, ...]) -> None:
    total = sum(counts)
    for trial in range(5):
        torch.manual_seed(trial)
        argmax = torch.randint(0, 3, (total,))
        # Placeholders and ids beyond the vocabulary among them.
        drafts = torch.where(torch.rand(total) < 0.7, argmax, torch.randint(-1, 4, (total,)))
        bonus = torch.randint(100, 200, (len(counts), 1))
        out = empty_rows(counts, extra=trial % 2)
        verify_greedy(out, cumulative_of(counts), drafts.int(), argmax, bonus)
        equal = torch.split(drafts == argmax, counts)
        expected = expected_rows(
            counts,
            [one.tolist() for one in equal],
            argmax.tolist(),
            argmax.tolist(),
            bonus.flatten().tolist(),
            out.shape[1],
        )
        assert out.tolist() == expected


def test_only_chosen_rows_are_written() -> None:
    counts = (2, 0, 1)
    out = torch.full((3, 3), 55, dtype=torch.int32)
    chosen = torch.tensor([False, True, False])
    drafts = torch.tensor([4, 5, 6])
    bonus = torch.tensor([7, 8, 9])
    verify_greedy(out, cumulative_of(counts), drafts, drafts, bonus, chosen)
    assert out.tolist() == [[55] * 3, [8, 55, 55], [55] * 3]
    ones = torch.ones(3, 10)
    noise = torch.ones(3, 10)
    verify_block(
        out, cumulative_of(counts), drafts, None, ones, bonus, noise, torch.zeros(3), ~chosen
    )
    assert out.tolist() == [[4, 5, 7], [8, 55, 55], [6, 9, 55]]


def probabilities(rows: int, vocabulary: int, zeros: float = 0.0) -> torch.Tensor:
    logits = 3 * torch.randn(rows, vocabulary)
    logits[torch.rand(rows, vocabulary) < zeros] = float("-inf")
    logits[:, vocabulary // 2] = logits[:, vocabulary // 2].clamp(min=-1)
    return logits.softmax(dim=-1)


def race_winner(p: list[float], q: list[float] | int, noise: list[float], scale: float) -> int:
    """The winner among what is left, in float64."""
    best, winner = 0.0, None
    for v, mass in enumerate(p):
        if isinstance(q, int):
            left = 0.0 if v == q else scale * mass
        else:
            left = max(scale * mass - q[v], 0.0)
        if left * noise[v] > best:
            best, winner = left * noise[v], v
    return p.index(max(p)) if winner is None else winner


@pytest.mark.oracle("ascend_specdec::verify_random", "a loop over drafts in Python, in float64")
@pytest.mark.oracle("ascend_specdec::recovered_tokens", "a loop over tokens in Python, in float64")
@pytest.mark.parametrize("certain", [False, True], ids=["drawn", "certain"])
@pytest.mark.parametrize("vocabulary", [1, 2, 32, 1000, 8193])
def test_random_equals_a_loop(vocabulary: int, certain: bool) -> None:
    counts = RAGGED
    total = sum(counts)
    torch.manual_seed(vocabulary)
    p = probabilities(total, vocabulary, zeros=0.3)
    q = None if certain else probabilities(total, vocabulary, zeros=0.3)
    drafts = torch.randint(0, vocabulary, (total,))
    drafts[::2] = p.argmax(dim=1)[::2]
    drafts[1], drafts[-1] = -1, vocabulary
    uniform = torch.rand(total, dtype=torch.float64)
    noise = 1 / torch.empty(len(counts), vocabulary).exponential_()
    bonus = torch.arange(len(counts))
    recovered = recovered_tokens(cumulative_of(counts), drafts, q, p, noise)
    out = empty_rows(counts)
    verify_random(out, cumulative_of(counts), drafts, q, p, bonus, recovered, uniform)

    expected, accepted, start = [], [], 0
    for request, count in enumerate(counts):
        accepted.append([])
        for i in range(start, start + count):
            draft = int(drafts[i])
            inside = 0 <= draft < vocabulary
            of_draft: list[float] | int = draft
            if q is not None:
                of_draft = q[i].tolist() if inside else [0.0] * vocabulary
            expected.append(race_winner(p[i].tolist(), of_draft, noise[request].tolist(), 1.0))
            certainty = 1.0 if q is None else float(q[i, draft]) if inside else 0.0
            mass = float(p[i, draft]) if inside else 0.0
            accepted[-1].append(inside and certainty > 0 and float(uniform[i]) < mass / certainty)
        start += count
    assert recovered.tolist() == expected
    assert recovered.dtype == torch.int32
    tokens = drafts.tolist()
    assert out.tolist() == expected_rows(
        counts, accepted, tokens, expected, bonus.tolist(), out.shape[1]
    )


def test_probability_0_is_never_accepted_and_1_always() -> None:
    p = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    drafts = torch.tensor([0, 1])
    most = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    for q in (None, torch.tensor([[1.0, 0.0], [0.0, 1.0]])):
        recovered = recovered_tokens(cumulative_of((1, 1)), drafts, q, p, torch.ones(2, 2))
        out = empty_rows((1, 1))
        verify_random(
            out, cumulative_of((1, 1)), drafts, q, p, torch.tensor([8, 9]), recovered, most
        )
        assert out.tolist() == [[1, UNWRITTEN], [1, 9]]


def test_equal_probabilities_are_accepted_whatever_is_drawn() -> None:
    """The product of the largest number below 1 and such a probability rounds to itself."""
    p = torch.rand(1000, 1) / 2 + 0.5
    rows = torch.cat([p, 1 - p], dim=1)
    zeros = torch.zeros(1000, dtype=torch.int64)
    uniform = torch.full((1000,), 1 - 2**-24)
    out = empty_rows((1,) * 1000)
    verify_random(out, cumulative_of((1,) * 1000), zeros, rows, rows, zeros + 5, zeros, uniform)
    assert (out == torch.tensor([0, 5])).all()


def test_nan_counts_as_probability_0() -> None:
    nan = float("nan")
    p = torch.tensor([[nan, 0.2, 0.8], [nan, nan, nan], [0.5, nan, 0.5], [0.5, 0.5, 0.0]])
    q = torch.tensor([[0.9, 0.1, nan], [0.2, 0.3, 0.5], [nan, nan, nan], [0.5, 0.5, 0.0]])
    drafts = torch.tensor([0, 1, 2, 0])
    counts = (1, 1, 1, 1)
    recovered = recovered_tokens(cumulative_of(counts), drafts, q, p, torch.ones(4, 3))
    # Row 3 has nothing left, so its most probable token stands.
    assert recovered.tolist() == [2, 0, 0, 0]
    out = empty_rows(counts)
    verify_random(out, cumulative_of(counts), drafts, q, p, drafts + 7, recovered, torch.zeros(4))
    assert out[:, 0].tolist() == [2, 0, 0, 0]
    accepted, _ = accepted_in_block(cumulative_of(counts), drafts, q, p, torch.zeros(4), 1)
    assert accepted.tolist() == [0, 0, 0, 1]


def block_in_python(
    p: torch.Tensor, q: torch.Tensor | None, drafts: list[int], uniform: list[float]
) -> tuple[int, list[float]]:
    """Accepted drafts and the products of ratios, by the paper, in float64."""
    n, vocabulary = p.shape
    scale, accepted = [1.0], 0
    for i, draft in enumerate(drafts):
        certainty = 1.0 if q is None else float(q[i, draft])
        scale.append(min(scale[-1] * float(p[i, draft]) / certainty, 1.0))
        share = scale[-1]
        if i + 1 < n:
            mass = 0.0
            for v in range(vocabulary):
                less = float(v == drafts[i + 1]) if q is None else float(q[i + 1, v])
                mass += max(scale[-1] * float(p[i + 1, v]) - less, 0.0)
            share = mass / (mass + 1 - scale[-1]) if mass + 1 - scale[-1] else 0.0
        if uniform[i] < share:
            accepted = i + 1
    return accepted, scale[:-1]


@pytest.mark.oracle("ascend_specdec::accepted_in_block", "the paper's recursion in Python, float64")
@pytest.mark.parametrize("certain", [False, True], ids=["drawn", "certain"])
@pytest.mark.parametrize("vocabulary", [2, 32, 1000])
def test_block_equals_the_recursion(vocabulary: int, certain: bool) -> None:
    counts = RAGGED
    total = sum(counts)
    torch.manual_seed(vocabulary)
    p, q = probabilities(total, vocabulary), probabilities(total, vocabulary)
    p = 0.7 * q + 0.3 * p
    drafts = torch.cat([torch.multinomial(row, 1) for row in q])
    uniform = torch.rand(total)
    given = None if certain else q
    accepted, scale = accepted_in_block(
        cumulative_of(counts), drafts, given, p, uniform, max(counts)
    )
    start = 0
    for request, count in enumerate(counts):
        part = slice(start, start + count)
        one = None if certain else q[part].double()
        taken, scales = block_in_python(
            p[part].double(), one, drafts[part].tolist(), uniform[part].tolist()
        )
        assert int(accepted[request]) == taken
        torch.testing.assert_close(scale[part], torch.tensor(scales))
        start += count


@pytest.mark.parametrize("place", [0, 1, 2])
def test_nothing_stands_behind_a_placeholder(place: int) -> None:
    p = torch.full((3, 4), 0.25)
    drafts = torch.tensor([0, 1, 2])
    drafts[place] = -1
    for q in (None, p):
        accepted, _ = accepted_in_block(cumulative_of((3,)), drafts, q, p, torch.zeros(3), 3)
        assert int(accepted[0]) <= place
        recovered = recovered_tokens(
            cumulative_of((3,)), drafts, q, p, torch.tensor([[1.0, 1, 1, 2]])
        )
        assert int(recovered[place]) == 3
        out = empty_rows((3,))
        verify_random(out, cumulative_of((3,)), drafts, q, p, drafts[:1], recovered, torch.zeros(3))
        assert out[0, place + 1 :].tolist() == [UNWRITTEN] * (3 - place)


def tree(vocabulary: int, depth: int, seed: int, flat: float) -> dict[tuple[int, ...], list[float]]:
    """A distribution for every prefix of at most ``depth`` tokens."""
    torch.manual_seed(seed)
    prefixes = itertools.chain.from_iterable(
        itertools.product(range(vocabulary), repeat=length) for length in range(depth + 1)
    )
    return {one: (torch.randn(vocabulary) / flat).softmax(0).tolist() for one in prefixes}


def law_of(dist: dict[tuple[int, ...], list[float]], vocabulary: int, length: int) -> dict:
    return {
        path: math.prod(dist[path[:i]][path[i]] for i in range(length))
        for path in itertools.product(range(vocabulary), repeat=length)
    }


# Midpoints of so many equal parts of [0, 1) stand for a uniform draw.
PARTS = 64


@pytest.mark.parametrize("method", ["one by one", "block"])
@pytest.mark.parametrize("drafter", ["good", "bad", "certain"])
@pytest.mark.parametrize(("vocabulary", "n"), [(2, 1), (2, 2), (3, 2)])
def test_the_law_is_that_of_the_target(method: str, drafter: str, vocabulary: int, n: int) -> None:
    """All drafts, all outcomes of the uniform draws on a grid, and the exact law of the rest."""
    target = tree(vocabulary, n, 1, 1.0)
    draft = tree(vocabulary, n, 2, 0.5 if drafter == "bad" else 2.0)
    grid = (torch.arange(PARTS) + 0.5) / PARTS
    uniform = torch.cartesian_prod(*[grid] * n).view(-1, n)
    requests = len(uniform)
    counts = (n,) * requests
    law = dict.fromkeys(itertools.product(range(vocabulary), repeat=n + 1), 0.0)
    for path in itertools.product(range(vocabulary), repeat=n):
        weight = math.prod(draft[path[:i]][path[i]] for i in range(n))
        p = torch.tensor([target[path[:i]] for i in range(n)])
        q = torch.tensor([draft[path[:i]] for i in range(n)])
        if drafter == "certain":
            weight = float(path == tuple([1] * n))
        arguments = (
            cumulative_of(counts),
            torch.tensor(path * requests),
            None if drafter == "certain" else q.repeat(requests, 1),
            p.repeat(requests, 1),
        )
        if method == "block":
            accepted, scale = accepted_in_block(*arguments, uniform.flatten(), n)
            scales = scale.view(requests, n)[0].tolist()
        else:
            out = empty_rows(counts)
            bonus = torch.zeros(requests, dtype=torch.int64)
            recovered = torch.full((n * requests,), -7)
            verify_random(out, *arguments, bonus, recovered, uniform.flatten())
            first = (out == -7).int()
            accepted = torch.where(first.any(1), first.argmax(1), n)
            scales = [1.0] * n
        for a in range(n + 1):
            chance = weight * float((accepted == a).double().mean())
            rest = target[path]
            if a < n:
                less = q[a].tolist()
                if drafter == "certain":
                    less = [float(v == path[a]) for v in range(vocabulary)]
                left = [
                    max(scales[a] * x - y, 0) for x, y in zip(target[path[:a]], less, strict=True)
                ]
                total = sum(left)
                if not total:
                    assert chance == 0
                    continue
                rest = [one / total for one in left]
            for tail in itertools.product(range(vocabulary), repeat=n + 1 - a):
                whole = path[:a] + tail
                follow = math.prod(target[whole[:i]][whole[i]] for i in range(a + 1, n + 1))
                law[whole] += chance * rest[tail[0]] * follow
    exact = law_of(target, vocabulary, n + 1)
    distance = sum(abs(law[path] - exact[path]) for path in exact) / 2
    assert sum(law.values()) == pytest.approx(1, abs=1e-5)
    # Half a part of the grid for every uniform draw is all that may be missing.
    assert distance < n / (2 * PARTS)


def test_what_is_recovered_has_the_law_of_what_is_left() -> None:
    """Chi-square over 20,000 races; the bound is exceeded once in a million by chance."""
    draws, vocabulary = 20000, 5
    p = torch.tensor([0.1, 0.4, 0.05, 0.25, 0.2])
    q = torch.tensor([0.3, 0.1, 0.05, 0.35, 0.2])
    torch.manual_seed(5)
    noise = 1 / torch.empty(draws, vocabulary).exponential_()
    for given, left in ((q, (p - q).clamp(min=0)), (None, p * torch.tensor([0, 1, 1, 1, 1.0]))):
        tokens = recovered_tokens(
            torch.arange(1, draws + 1),
            torch.zeros(draws, dtype=torch.int64),
            None if given is None else given.repeat(draws, 1),
            p.repeat(draws, 1),
            noise,
        )
        seen = torch.bincount(tokens, minlength=vocabulary).double()
        expected = draws * left.double() / left.double().sum()
        assert seen[expected == 0].sum() == 0
        kept = expected > 0
        statistic = float(((seen - expected)[kept] ** 2 / expected[kept]).sum())
        assert statistic < 33


def test_block_accepts_at_least_as_many_on_average() -> None:
    torch.manual_seed(0)
    requests, n, vocabulary = 2000, 4, 3
    q = probabilities(requests * n, vocabulary)
    p = 0.6 * q + 0.4 * probabilities(requests * n, vocabulary)
    drafts = torch.multinomial(q, 1).flatten()
    uniform = torch.rand(requests * n)
    counts = (n,) * requests
    accepted, _ = accepted_in_block(cumulative_of(counts), drafts, q, p, uniform, n)
    out = empty_rows(counts)
    bonus = torch.zeros(requests, dtype=torch.int64)
    verify_random(out, cumulative_of(counts), drafts, q, p, bonus, drafts, uniform)
    one_by_one = float((out != UNWRITTEN).sum() - requests) / requests
    assert float(accepted.double().mean()) > one_by_one


def test_a_whole_vocabulary() -> None:
    torch.manual_seed(3)
    p, q = probabilities(3, 151936), probabilities(3, 151936)
    drafts = torch.tensor([1, 151935, 7])
    noise = 1 / torch.empty(2, 151936).exponential_()
    got = recovered_tokens(cumulative_of((2, 1)), drafts, q, p, noise)
    expected = [
        int(((p[i].double() - q[i]).clamp(min=0) * noise[r]).argmax())
        for i, r in enumerate((0, 0, 1))
    ]
    assert got.tolist() == expected


def test_what_does_not_belong_together_is_refused_before_anything_is_written() -> None:
    drafts, bonus = torch.tensor([1, 2]), torch.tensor([3])
    rows = torch.full((1, 3), UNWRITTEN, dtype=torch.int32)
    cases = (
        (rows.long(), drafts, bonus, "int64"),
        (rows, drafts.float(), bonus, "float32"),
        (rows, drafts, torch.tensor([3, 4]), "bonus"),
        (torch.zeros(1, 200, dtype=torch.int32), drafts, bonus, "200 columns"),
        (rows.repeat(1, 2)[:, ::2], drafts, bonus, "strides"),
    )
    for out, given, last, message in cases:
        with pytest.raises(InvalidInputError, match=message):
            verify_greedy(out, cumulative_of((2,)), given, given, last)
    p = torch.full((2, 4), 0.25)
    with pytest.raises(InvalidInputError, match="vocabulary of 0"):
        recovered_tokens(cumulative_of((2,)), drafts, None, p[:, :0], p[:1, :0])
    with pytest.raises(InvalidInputError, match="most=200"):
        accepted_in_block(cumulative_of((2,)), drafts, None, p, torch.zeros(2), 200)
    assert rows.tolist() == [[UNWRITTEN] * 3]
