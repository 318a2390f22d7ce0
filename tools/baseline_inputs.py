"""What kernels are given for the comparison of baseline_work.py, and how much work that is."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from ascend_ops_core.cases import Inputs

BF16 = torch.bfloat16

Arguments = Callable[[Inputs], tuple[Any, ...]]
Units = Callable[[dict[str, Any]], float]


@dataclass(frozen=True)
class Passes:
    """How often a kernel passes for a work that several kernels do.

    Attributes:
        kernel: its name.
        count: passes, its inner loop counting once.
        held: passes by which its buffer counts, where its inner loop uses it again.
        scalar: passes by which accesses to single elements count, where all stand before that loop.
        less: bytes that these passes count too often, since they move beside that loop.
    """

    kernel: str
    count: float
    held: float | None = None
    scalar: float | None = None
    less: float = 0.0


@dataclass(frozen=True)
class Work:
    """One row.

    Attributes:
        theirs: name in ascend_baseline.json.
        what: the work.
        unit: what the figures are given for.
        their_units: units that one pass of theirs handles; None for KiB moved.
        operator: ours.
        package: that has it.
        arguments: what it is called with; its own tiling decides the rest.
        our_units: units that one pass of ours handles, from the constants of the launch; None for
            KiB moved.
        once: whether loops count once on our side too, since theirs has one of unknown length.
        held: units that our tile holds, where that is not the same.
        looped: whether the compiler can double-buffer theirs: it has a loop over its tiles, and its
            launch does not forbid it.
        single: constants of the largest tile of ours that fits without double buffering, where that
            is not the tile that is launched with it.
        kernel: name of our kernel, where the operator launches several; the last one otherwise.
        passes: our launches that do the work together, in their order, for ``their_units``; loops
            count once in a pass, as on their side.
        remark: what the page has to say about it.
        also: kernels of theirs that do the rest of the work, with the units of a pass of each.
        more: bytes of a unit that ours moves for a result that theirs does not give.
        family: of devices for which both are compiled.
    """

    theirs: str
    what: str
    unit: str
    their_units: float | None
    operator: str
    arguments: Arguments
    our_units: Units | None
    once: bool = False
    held: Units | None = None
    looped: bool = True
    single: dict[str, int] = field(default_factory=dict)
    kernel: str = ""
    passes: tuple[Passes, ...] = ()
    remark: str = ""
    package: str = "ascend_ops_core"
    also: tuple[tuple[str, float], ...] = ()
    more: float = 0.0
    family: str = "A2"


def per_rows(constants: dict[str, Any]) -> float:
    return float(constants.get("ROWS", 1) * constants["WIDTH"] / 1024)


def per_block(constants: dict[str, Any]) -> float:
    return float(constants["BLOCK"] / 1024)


def per_tokens(constants: dict[str, Any]) -> float:
    return float(constants["TOKENS"])


def gated_inputs(rows: int, width: int, activation: str) -> Arguments:
    return lambda new: (
        new.randn(rows, width, dtype=BF16),
        new.randn(rows, width, dtype=BF16),
        new.randn(width, dtype=BF16),
        None,
        1e-5,
        width,
        True,
        activation,
    )


def rotary_inputs(tokens: int, heads: tuple[int, ...]) -> Arguments:
    return lambda new: (
        *(new.randn(tokens, count, 128, dtype=BF16) for count in heads),
        new.randn(tokens, 64, dtype=BF16),
        new.randn(tokens, 64, dtype=BF16),
        False,
        False,
        False,
    )


def qkv_inputs(new: Inputs, tokens: int, heads: tuple[int, int]) -> torch.Tensor:
    return new.randn(tokens, (heads[0] + 2 * heads[1]) * 128, dtype=BF16)


def split_inputs(new: Inputs) -> tuple[Any, ...]:
    norm = [new.randn(128, dtype=BF16) for _ in range(2)]
    table, positions = new.randn(4096, 128, dtype=BF16), new.randint(0, 4096, 4096)
    return (
        qkv_inputs(new, 4096, (32, 8)),
        table,
        positions,
        *norm,
        None,
        None,
        32,
        8,
        128,
        1e-6,
        False,
    )


def split_mrope_inputs(new: Inputs) -> tuple[Any, ...]:
    norm = [new.randn(128, dtype=BF16) for _ in range(2)]
    table, positions = new.randn(4096, 128, dtype=BF16), new.randint(0, 4096, 3, 4096)
    leading = (qkv_inputs(new, 4096, (32, 8)), table, positions, *norm, None, None)
    return *leading, [24, 20, 20], True, 32, 8, 128, 1e-6, False


def split_apply_inputs(new: Inputs) -> tuple[Any, ...]:
    weights = new.randn(8 * 128, dtype=BF16), new.randn(2 * 128, dtype=BF16)
    table, positions = new.randn(4096, 64, dtype=BF16), new.randint(0, 4096, 4096)
    leading = (qkv_inputs(new, 4096, (8, 2)), new.rand(2, 4096), table, positions, *weights)
    return *leading, 8, 2, 128, 64, 16, 1e-6


def linear_inputs(bias: bool) -> Arguments:
    return lambda new: (
        new.randn(4096, 4096, dtype=BF16),
        new.randn(1536, 4096, dtype=BF16),
        new.randn(1536, dtype=BF16) if bias else None,
    )


def per_products(constants: dict[str, Any]) -> float:
    return float(constants["BM"] * constants["BN"] * constants["BK"] / 2**20)


def slots_inputs(new: Inputs) -> tuple[Any, ...]:
    # Eight ranks that share a context, which theirs is compiled for as well.
    slots, starts = new.randint(0, 1, 4096), new.tensor([0, 4096], torch.int32)
    positions, table = new.randint(0, 4096, 4096), new.randint(0, 9, 1, 9, dtype=torch.int32)
    return slots, starts, positions, table, 128, 8, 3, 1


def gates_inputs(new: Inputs) -> tuple[Any, ...]:
    a, b = (new.randn(65536, 8, dtype=BF16) for _ in range(2))
    return a, b, new.rand(8), new.randn(8, dtype=BF16), BF16


def conv_inputs(new: Inputs, drafts: int) -> tuple[Any, ...]:
    requests, channels, tokens = 64, 8192, 1 + drafts
    starts = new.tensor(range(0, (requests + 1) * tokens, tokens), torch.int32)
    slots = new.tensor(range(1, requests + 1), torch.int32)
    accepted = new.full(1, requests, dtype=torch.int32) if drafts else None
    return (
        new.randn(requests * tokens, channels, dtype=BF16),
        new.randn(4, channels, dtype=BF16),
        starts,
        None,
        new.randn(requests + 1, 3 + drafts, channels, dtype=BF16),
        slots,
        None,
        accepted,
        tokens,
        True,
    )


def l2_inputs(new: Inputs) -> tuple[Any, ...]:
    return new.randn(131072, 128, dtype=BF16), 1e-6, 1.0, BF16


ATTENTION, SPECULATION = "ascend_attention", "ascend_specdec"


def case_inputs(package: str, module: str, operator: str, name: str) -> Arguments:
    """A case that the package has for its operator."""

    def made(new: Inputs) -> tuple[Any, ...]:
        cases = importlib.import_module(f"{package}.ops.{module}.cases").CASES[operator]
        made: tuple[Any, ...] = next(one for one in cases if one.name == name).make(new)
        return made

    return made


def chunk_inputs(heads: tuple[int, int], channels: bool) -> Arguments:
    """A prompt of 4,096 tokens; queries and keys are normed before."""

    def made(new: Inputs) -> tuple[Any, ...]:
        tokens = 4096
        query, key = (new.randn(tokens, heads[0], 128, dtype=BF16) for _ in range(2))
        decay = (tokens, heads[1], 128) if channels else (tokens, heads[1])
        return (
            *(query, key, new.randn(tokens, heads[1], 128, dtype=BF16), new.randn(*decay)),
            *(new.rand(tokens, heads[1], dtype=BF16), new.randn(3, heads[1], 128, 128)),
            *(new.tensor([0, tokens], torch.int32), new.tensor([1], torch.int32)),
            *(new.tensor([True], torch.bool), 128**-0.5, False, None),
        )

    return made


def channel_gates_inputs(new: Inputs) -> tuple[Any, ...]:
    f, b = new.randn(4096, 32, 128, dtype=BF16), new.randn(4096, 32, dtype=BF16)
    return f, b, new.rand(32), new.randn(32, 128), None


def recurrence_inputs(new: Inputs) -> tuple[Any, ...]:
    requests, heads = 64, 8
    query, key, value = (new.randn(requests, heads, 128, dtype=BF16) for _ in range(3))
    return (
        *(query, key, value, new.randn(requests, heads, 128), new.rand(requests, heads)),
        new.randn(requests + 1, heads, 128, 128),
        new.tensor(range(requests + 1), torch.int32),
        new.tensor(range(1, requests + 1), torch.int32).view(requests, 1),
        *(None, 128**-0.5, True),
    )


def expanded_inputs(new: Inputs) -> tuple[Any, ...]:
    one = new.randint(0, 3, 1, dtype=torch.int32)
    return new.full(0, 5, dtype=torch.int32), one, new.tensor([5], torch.int32), 0.0, 1.0


def even_inputs(new: Inputs) -> tuple[Any, ...]:
    drafts, argmax, bonus = (new.randint(0, 9, 256, dtype=torch.int32) for _ in range(3))
    out = new.full(-1, 256, 2, dtype=torch.int32)
    return out, new.tensor(range(1, 257), torch.int32), drafts, argmax, bonus, None


def ngram_inputs(new: Inputs) -> tuple[Any, ...]:
    lengths = new.full(8192, 64, dtype=torch.int32)
    return new.randint(0, 9, 64, 8192, dtype=torch.int32), lengths, 1, 4, 4, 1 << 20


def per_vocabulary(constants: dict[str, Any]) -> float:
    tiles = -(-constants["VOCABULARY"] // constants["BLOCK"])
    return float(tiles * constants["BLOCK"] / 1024)
