"""Faults in the kernels of linear attention's small operators that their proofs notice."""

from __future__ import annotations

import importlib

import pytest
from ascend_ops_core.testing.mutants import assert_noticed, mutated

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("lanes, tl.where(has, left, 0))", "lanes, left)"),
        ("mask=slot > 0, other=1).to(tl.int32) - 1", "mask=slot > 0, other=1).to(tl.int32) * 0"),
        ("total += h2 * w2", "total += h1 * w2"),
        ("as_int64(t + TAPS - 2) * state_row_stride", "as_int64(t + TAPS - 1) * state_row_stride"),
        ("if count > CHUNK:", "if count > 2 * CHUNK:"),
        ("slot = tl.where(real, 1, 0)", "slot = tl.where(real, 1, 1)"),
    ],
    ids=["history of a new request", "nothing accepted", "taps", "kept rows", "last rows",
         "padding convolved"],
)  # fmt: skip
def test_causal_conv1d(original: str, replacement: str) -> None:
    assert_noticed("ascend_attention::causal_conv1d", original, replacement)


@pytest.mark.parametrize(
    ("name", "original", "replacement"),
    [
        ("l2_norm", "squares = tl.sum(x * x, axis=1) + eps", "squares = tl.sum(x * x, axis=1)"),
        ("l2_norm", "squares = squares * inverse", "squares = squares / inverse"),
        ("gdn_gates", "tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(x)))", "tl.log(1.0 + tl.exp(x))"),
        ("gdn_gates", "tl.store(decay_ptr + here, _softplus(x)", "tl.store(decay_ptr + here, x"),
        ("kda_gates", "bound / sigmoid_divisor(x * rate)", "bound / sigmoid_divisor(x)"),
        ("split_qkvz_ba", "(HEADS + head) * KEY", "(HEADS + head) * VALUE"),
        ("split_qkvz_ba", "source += 2 * KEY + VALUE", "source += 2 * KEY"),
        ("clear_states", "tl.load(cleared_ptr + n) > 0", "tl.load(cleared_ptr + n) >= 0"),
        ("clear_states", "if slot > 0:", "if slot >= 0:"),
        ("copy_states", "lanes < size - skipped - done", "lanes < size - done"),
        ("copy_states", "& (source != destination)", "& (source >= destination)"),
    ],
)
def test_small_operators(name: str, original: str, replacement: str) -> None:
    assert_noticed(f"ascend_attention::{name}", original, replacement)


@pytest.mark.parametrize(
    ("module", "original", "replacement"),
    [
        ("chunks", "CHUNK - count + i)", "i)"),
        ("chunks", "tl.where(lag >= 0.0, tl.exp", "tl.where(lag > 0.0, tl.exp"),
        ("chunks", "tl.store(to, state.to(", "tl.store(to, (state + added).to("),
        ("chunks", "tl.where(c < chunks - 1, whole, last)", "whole"),
        ("chunks", "(2 * CHUNK) + CHUNK + i)", "(2 * CHUNK) + CHUNK - 1 + i)"),
        ("tokens", "column = tl.load(accepted_ptr + row).to(tl.int32) - 1", "column = 0"),
        ("tokens", "slot = tl.load(slots + t - begin)", "slot = tl.load(slots)"),
    ],
)  # fmt: skip
def test_lightning_attention(module: str, original: str, replacement: str) -> None:
    name = {"chunks": "lightning_attention", "tokens": "lightning_decode"}[module]
    family = "ascend_attention.ops.lightning_attention.kernels"
    # The package is imported anew as well, since it holds functions of the module.
    with mutated(importlib.import_module(f"{family}.{module}"), original, replacement):
        same = '"""Lightning attention in Triton'
        assert_noticed(f"ascend_attention::{name}", same, same)
