"""Routed experts that many tokens chose, which a CPU computes in panels of tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ascend_fused_moe.ops.experts import cpu_columns, fused_experts
from ascend_ops_core.testing import assert_close
from numba import njit


def given(sizes: list[int], hidden: int, inter: int) -> tuple[torch.Tensor, ...]:
    """Tokens that choose one expert each, so many for each."""
    torch.manual_seed(sum(sizes) + hidden)
    ids = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    ids = ids[torch.randperm(len(ids))].unsqueeze(1)
    return (
        torch.randn(len(ids), hidden),
        torch.randn(len(sizes), 2 * inter, hidden) / hidden**0.5,
        torch.randn(len(sizes), hidden, inter) / inter**0.5,
        torch.rand(len(ids), 1),
        ids,
    )


def expected(
    x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """Token by token, in float64."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for t, e in enumerate(ids[:, 0].tolist()):
        gate, up = (w13[e].double() @ x[t].double()).chunk(2)
        gate, up = gate.clamp(max=0.7), up.clamp(-0.7, 0.7)
        out[t] = weights[t, 0] * (w2[e].double() @ (gate * gate.sigmoid() * up))
    return out


LEAST = cpu_columns._LEAST_PAIRS


# Fewer pairs than a task has rows; panels and tiles in one call; a panel of every number of units;
# several panels.
@pytest.mark.parametrize(
    "sizes",
    [[LEAST], [LEAST - 1, LEAST, 0, 1], [33, 40, 41, 48], [56, 57, 64], [65, 150, 3], [170]],
    ids=str,
)
@pytest.mark.parametrize(("hidden", "inter"), [(19, 37), (64, 50), (131, 97)])
def test_equals_token_by_token(sizes: list[int], hidden: int, inter: int) -> None:
    inputs = given(sizes, hidden, inter)
    assert_close(fused_experts(*inputs, swiglu_limit=0.7), expected(*inputs))


def test_nan_stays_in_its_token_of_a_panel() -> None:
    inputs = given([LEAST + 5], 32, 32)
    inputs[0][3, 2] = float("nan")
    out = fused_experts(*inputs)
    assert out[3].isnan().all()
    assert out[[t for t in range(len(out)) if t != 3]].isfinite().all()


blocks = cpu_columns.column_blocks


@njit
def places(starts, w):  # type: ignore[no-untyped-def]
    return blocks(starts, 10, w)


def test_only_float32_blocks_of_many_pairs_are_in_panels() -> None:
    starts = np.array([0, LEAST, 2 * LEAST - 1, 4 * LEAST - 1])
    found, room, units = places(starts, np.zeros((1, 1), dtype=np.float32))
    first, third = -(-LEAST // 8), -(-2 * LEAST // 8)
    assert found.tolist() == [0, -1, first * 8 * 10]
    assert units == third
    assert len(room) >= (first + third) * 8 * 10
    found, _, units = places(starts, np.zeros((1, 1), dtype=np.uint16))
    assert found.tolist() == [-1, -1, -1]
    assert units == 0
    with pytest.raises(NotImplementedError):
        cpu_columns.column_blocks(starts, 10, room)
