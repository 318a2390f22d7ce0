"""Every way of communication on simulated NPUs: MC2, and the others with shapes of a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytestmark = pytest.mark.sim

# The least size of a token that MC2's operators take on A3.
MC2 = {"method": "mc2", "hidden": 1024, "dtype": torch.bfloat16}
LAYOUTS = ((2, 1), (1, 2), (3, 1), (4, 1), (2, 2))


@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["whole", "shared_out"])
@pytest.mark.parametrize(("dp", "tp"), LAYOUTS)
def test_mc2_with_uneven_tokens(npu_ranks: Any, dp: int, tp: int, sequence_parallel: bool) -> None:
    """A part without tokens dispatches a row that is not active."""
    given = {**MC2, "dp": dp, "tp": tp, "sequence_parallel": sequence_parallel}
    npu_ranks.check(
        {**given, "tokens": (5, 2, 3, 1)[:dp]},
        {**given, "tokens": (0, 4, 1, 0)[:dp]},
        {**given, "tokens": (0,) * dp},
    )


def test_mc2_with_experts_that_ranks_do_not_divide(npu_ranks: Any) -> None:
    given = {**MC2, "tokens": (4, 1), "top_k": 2}
    npu_ranks.check(
        {**given, "dp": 2, "tp": 2, "experts": 10}, {**given, "dp": 2, "tp": 1, "experts": 5}
    )


def test_mc2_with_rows_of_padding(npu_ranks: Any) -> None:
    npu_ranks.check({**MC2, "dp": 2, "tp": 2, "tokens": (5, 8), "padding": (2, 8)})


def test_mc2_with_few_experts_for_all_tokens(npu_ranks: Any) -> None:
    npu_ranks.check({**MC2, "dp": 2, "tp": 2, "tokens": (5, 8), "only": (6,), "top_k": 1})


def test_mc2_leaves_whole_outputs(npu_ranks: Any) -> None:
    for shared, sums in (("tensor_parallel", 1), ("replicated", 0), ("local_tokens", 0)):
        layer = {**MC2, "dp": 1, "tp": 2, "tokens": (5,), "shared": shared}
        (results,) = npu_ranks.check(layer)
        for one in results:
            assert one["calls"]["tp"].get("all_reduce", 0) == sums
            assert one["calls"]["ep"] == {}


def test_mc2_in_chunks(npu_ranks: Any) -> None:
    layer = {**MC2, "dp": 2, "tp": 1, "tokens": (5, 2), "options": {"dp_chunk_tokens": 3}}
    npu_ranks.check(layer, choices=False)


@pytest.mark.parametrize("method", ["all_gather", "all_to_all"])
def test_rows_beyond_those_of_the_experts_are_not_read(npu_ranks: Any, method: str) -> None:
    """On a device their number is not waited for, so shapes are those of the fullest step."""
    given = {"method": method, "shared": "tensor_parallel", "options": {"overlap": True}}
    npu_ranks.check(
        {**given, "dp": 2, "tp": 2, "tokens": (5, 0)},
        {**given, "dp": 2, "tp": 2, "tokens": (5, 3), "padding": (1, 3), "experts": 10},
        {**given, "dp": 1, "tp": 3, "tokens": (1,), "only": (6,), "top_k": 1},
    )
