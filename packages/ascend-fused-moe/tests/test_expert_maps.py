"""From logical to physical experts, choice by choice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_fused_moe.ops.expert_maps import map_to_physical, map_to_physical_and_record
from ascend_ops_core import InvalidInputError

I32 = torch.int32


@pytest.mark.oracle("ascend_fused_moe::map_to_physical_and_record", "choice by choice in the test")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("unpadded", [None, 0, 2, 99])
@pytest.mark.parametrize("tokens", [0, 1, 3, 17])
def test_choice_by_choice(tokens: int, unpadded: int | None, dtype: torch.dtype) -> None:
    ids = torch.randint(-1, 8, (tokens, 3), dtype=dtype)
    table = torch.randint(-1, 9, (7, 4), dtype=I32)
    load = torch.full((9,), 5, dtype=I32)
    count = None if unpadded is None else torch.tensor([unpadded])
    expected, counts = torch.full_like(ids, -1), load.clone()
    for t in range(tokens):
        for j in range(3):
            if 0 <= ids[t, j] < 7:
                place = int(table[ids[t, j], (t + 6) % 4])
                expected[t, j] = place
                if place >= 0 and (unpadded is None or t < unpadded):
                    counts[place] += 1
    before = ids.clone()
    actual = map_to_physical_and_record(ids, table, load, count, offset=6)
    assert actual.dtype == dtype
    assert torch.equal(actual, expected)
    assert torch.equal(load, counts)
    assert torch.equal(ids, before)
    assert torch.equal(map_to_physical(ids, table, offset=6), expected)


def test_in_a_compiled_graph() -> None:
    """The operator is opaque, and the graph knows that it writes the counters."""
    table = torch.tensor([[0, 3], [1, 1], [2, 2]], dtype=I32)

    def run(ids: torch.Tensor, load: torch.Tensor) -> torch.Tensor:
        return map_to_physical_and_record(ids, table, load) + 1

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    ids, load = torch.tensor([[0, 1], [0, 2]]), torch.zeros(4, dtype=I32)
    assert compiled(ids, load).tolist() == [[1, 2], [4, 3]]
    assert load.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ids": torch.zeros(3, dtype=I32)}, r"ids of shape \[3\]"),
        ({"ids": torch.zeros(3, 2)}, r"ids of torch.float32.*int32, int64"),
        ({"table": torch.zeros(5, 0, dtype=I32)}, r"period of the table=0"),
        ({"table": torch.zeros(5, 2, dtype=torch.int64)}, r"table of torch.int64"),
        ({"table": torch.full((5, 2), 4, dtype=I32)}, r"place 4 in the table.*4 places"),
        ({"load": torch.zeros(4)}, r"load of torch.float32"),
        ({"num_unpadded_tokens": torch.zeros(2, dtype=I32)}, r"num_unpadded_tokens.*\[2\]"),
        ({"offset": -1}, r"offset=-1"),
    ],
)
def test_bad_arguments_change_nothing(changed: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {
        "ids": torch.zeros(3, 2, dtype=I32),
        "table": torch.zeros(5, 2, dtype=I32),
        "load": torch.zeros(4, dtype=I32),
        "num_unpadded_tokens": torch.tensor([2]),
    }
    with pytest.raises(InvalidInputError, match=message):
        map_to_physical_and_record(**given | changed)
    assert given["load"].eq(0).all()
    map_to_physical_and_record(**given)
    assert given["load"][0] == 4
