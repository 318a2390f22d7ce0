"""Faults in the kernels of the gated delta rule that their proofs notice."""

from __future__ import annotations

import importlib
from contextlib import ExitStack

import pytest
from ascend_ops_core.testing.mutants import assert_noticed, mutated

pytestmark = pytest.mark.interpreter

FAMILY = "ascend_attention.ops.gated_delta_rule.kernels"
KEPT = '"""The gated delta rule in Triton'


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("stays = (to > 0) &", "stays = (to >= 0) &"),
        ("column = tl.load(accepted_ptr + request) - 1", "column = 0"),
        ("tokens = tl.where(slot > 0, tl", "tokens = tl.where(slot >= 0, tl"),
        ("state = state * tl.exp(decay)[None, :]", "state = state"),
        ("as_int64(head // SHARED) * key_head", "0 * key_head"),
    ],
    ids=["slot 0 written", "accepted ignored", "slot 0 read", "no decay", "first key head for all"],
)
def test_recurrent(original: str, replacement: str) -> None:
    # The package is imported anew as well, since it holds functions of the module.
    with mutated(importlib.import_module(f"{FAMILY}.recurrent"), original, replacement):
        assert_noticed("ascend_attention::recurrent_gated_delta_rule", KEPT, KEPT)


@pytest.mark.parametrize(
    ("module", "original", "replacement"),
    [
        ("chunks", "kept = tl.where(tl.load(has_ptr + request) != 0, height, 0)", "kept = height"),
        ("chunks", "tokens = tl.where(slot > 0, tl", "tokens = tl.where(slot >= 0, tl"),
        ("inverse", "while half < CHUNK:", "while half < CHUNK // 2:"),
        ("inverse", "for k in range(1, HALF):", "for k in range(1, HALF - 1):"),
        ("inverse", "left = count - top - HALF", "left = HALF - top"),
        ("chunks", "state = state * shrunk - lost", "state = state - lost"),
        ("chunks", "tl.dot(seen, held, change, input", "tl.dot(seen, held, input"),
        ("heads", "place[:, None] >= place[None, :], between", "place[:, None] >= 0.0, between"),
        ("heads", "row = first * HEADS + group * SHARED + shared\n            beta",
         "row = first * HEADS + group * SHARED\n            beta"),
        ("products", "tokens == TAKEN * CHUNK, TAKEN", "tokens != 0, TAKEN"),
        ("channels", "while half < CHUNK:", "while half < CHUNK // 2:"),
        ("channels", "tl.exp(middle - sums)", "tl.exp(-sums)"),
        ("channels", "keys * tl.exp(its[:, None, :] - sums)", "keys * tl.exp(its[:, None, :])"),
    ],
    ids=[
        "old state read",
        "slot 0 read",
        "last merge left out",
        "last row of a half left out",
        "rows that do not exist merged",
        "state not decayed",
        "values not looked at",
        "later tokens seen",
        "first value head for all",
        "broken chunks summed together",
        "halves of chunks left out",
        "middle left out",
        "keys not decayed",
    ],
)  # fmt: skip
def test_chunks(module: str, original: str, replacement: str) -> None:
    with ExitStack() as stack:
        stack.enter_context(
            mutated(importlib.import_module(f"{FAMILY}.{module}"), original, replacement)
        )
        # Modules that hold functions of the mutant are imported anew, too.
        for above, same in (
            ("products", "def products("),
            ("chunks", "def chunk_gated_delta_rule("),
        ):
            if above != module:
                stack.enter_context(
                    mutated(importlib.import_module(f"{FAMILY}.{above}"), same, same)
                )
        assert_noticed("ascend_attention::chunk_gated_delta_rule", KEPT, KEPT)
