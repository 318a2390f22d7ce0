"""Cache indices of a step, built in vLLM's types, against loops over tokens (bug case 14).

They live in ascend_attention, whose own tests run without vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from ascend_attention.caches import CacheKind, CacheRole, layer_caches
from ascend_attention.ops.paged_rows import RowIndex, gather_rows, write_rows
from ascend_attention.step import StepLayout
from ascend_attention.step_bytes import StepSize, metadata_bytes
from ascend_attention.vllm.dsa.metadata import AscendDSAMetadata, build_metadata

WINDOW = 8
# (tokens computed before, tokens of this step)
BATCHES = {
    "prefill": [(0, 300)],
    "decode": [(4, 1), (127, 1), (128, 1), (255, 1)],
    "mixed": [(0, 3), (130, 140), (511, 1), (20, 0), (3, 1)],
    "chunks": [(64, 64), (100, 29), (256, 1)],
}


def kinds(ratio: int) -> dict[CacheRole, CacheKind]:
    return layer_caches(
        ratio,
        head_dim=6,
        rotary_dim=2,
        index_head_dim=4,
        sliding_window=WINDOW,
        dtype=torch.float32,
    )


class Step:
    """One kind of cache, a batch, and tables of shuffled blocks."""

    def __init__(self, kind: CacheKind, batch: list[tuple[int, int]]) -> None:
        self.kind, self.batch = kind, batch
        columns = 520 // kind.block_tokens + 1
        # Block 0 stays unused, as in vLLM; every other block belongs to one request.
        order = torch.randperm(len(batch) * columns) + 1
        self.table = order.view(len(batch), columns).int()
        starts = torch.tensor([0, *(new for _, new in batch)]).cumsum(0)
        self.layout = StepLayout.build(starts, [before + new for before, new in batch])
        self.tokens = [(r, p) for r, (s, n) in enumerate(batch) for p in range(s, s + n)]
        self.slots = torch.tensor([self.slot(r, p) for r, p in self.tokens])
        blocks = len(batch) * columns + 1
        self.cache = torch.full((blocks, kind.rows_per_block, kind.width), float("nan"))

    def slot(self, request: int, position: int) -> int:
        size = self.kind.block_tokens
        return int(self.table[request, position // size]) * size + position % size

    def row(self, request: int, row: int) -> tuple[int, int]:
        size = self.kind.rows_per_block
        return int(self.table[request, row // size]), row % size

    def build(self, slots: torch.Tensor | None = None) -> AscendDSAMetadata:
        given = self.slots if slots is None else slots
        return build_metadata(self.kind, self.layout, self.table, given)

    def closed(self) -> list[tuple[int, int]]:
        ratio = self.kind.compress_ratio
        return [(r, p // ratio) for r, p in self.tokens if (p + 1) % ratio == 0]


def pairs(index: tuple[torch.Tensor, torch.Tensor]) -> list[tuple[int, int]]:
    return list(zip(index[0].flatten().tolist(), index[1].flatten().tolist(), strict=True))


@pytest.fixture(params=sorted(BATCHES))
def batch(request: pytest.FixtureRequest) -> list[tuple[int, int]]:
    return BATCHES[request.param]


@pytest.mark.parametrize("ratio", [0, 4, 128])
def test_sliding_window(ratio: int, batch: list[tuple[int, int]]) -> None:
    step = Step(kinds(ratio)[CacheRole.SLIDING_WINDOW], batch)
    meta = step.build()
    assert meta.write is not None
    assert meta.read is not None
    assert pairs(meta.write) == [step.row(r, p) for r, p in step.tokens]
    for t, (r, p) in enumerate(step.tokens):
        valid = [True] * WINDOW if meta.read_valid is None else meta.read_valid[t].tolist()
        assert valid == [p - back >= 0 for back in range(WINDOW - 1, -1, -1)]
        read = pairs((meta.read.block[t], meta.read.offset[t]))
        seen = [at for at, ok in zip(read, valid, strict=True) if ok]
        assert seen == [step.row(r, q) for q in range(max(0, p - WINDOW + 1), p + 1)]
    assert meta.closed is None
    assert meta.visible is None


@pytest.mark.parametrize(
    ("ratio", "role"),
    [
        (4, CacheRole.COMPRESSOR_STATE),
        (4, CacheRole.INDEX_STATE),
        (128, CacheRole.COMPRESSOR_STATE),
    ],
)
def test_states(ratio: int, role: CacheRole, batch: list[tuple[int, int]]) -> None:
    step = Step(kinds(ratio)[role], batch)
    meta = step.build()
    assert meta.write is not None
    assert meta.read is not None
    assert meta.closed is not None
    assert pairs(meta.write) == [step.row(r, p) for r, p in step.tokens]
    closed = list(zip(meta.closed.request.tolist(), meta.closed.entry.tolist(), strict=True))
    assert closed == step.closed()
    width = {4: 8, 128: 128}[ratio]
    assert meta.read.block.shape == (len(closed), width)
    for n, (r, e) in enumerate(closed):
        positions = range((e + 1) * ratio - width, (e + 1) * ratio)
        read = pairs((meta.read.block[n], meta.read.offset[n]))
        for at, q in zip(read, positions, strict=True):
            assert q < 0 or at == step.row(r, q)


@pytest.mark.parametrize(
    ("ratio", "role"),
    [(4, CacheRole.COMPRESSED), (4, CacheRole.INDEX_KEY), (128, CacheRole.COMPRESSED)],
)
def test_entries(ratio: int, role: CacheRole, batch: list[tuple[int, int]]) -> None:
    step = Step(kinds(ratio)[role], batch)
    meta = step.build()
    assert meta.write is not None
    assert pairs(meta.write) == [step.row(r, e) for r, e in step.closed()]
    if ratio == 4:
        assert meta.visible is None
        return
    assert meta.visible is not None
    index, valid = meta.visible
    for t, (r, p) in enumerate(step.tokens):
        count = (p + 1) // ratio
        row = pairs((index.block[t], index.offset[t]))
        seen = row if valid is None else [at for at, ok in zip(row, valid[t], strict=True) if ok]
        assert seen == [step.row(r, e) for e in range(count)]


TOKEN_KINDS = [
    (0, CacheRole.SLIDING_WINDOW),
    (4, CacheRole.COMPRESSOR_STATE),
    (4, CacheRole.INDEX_STATE),
    (128, CacheRole.COMPRESSOR_STATE),
]


@pytest.mark.parametrize(("ratio", "role"), TOKEN_KINDS)
@pytest.mark.parametrize("inside", [False, True], ids=["behind the step", "inside the step"])
def test_padding_slots_change_no_byte(ratio: int, role: CacheRole, inside: bool) -> None:
    """64 real tokens padded to 128 with slot -1, which would reach the last row of the cache."""
    step = Step(kinds(ratio)[role], [(0, 128)] if inside else [(0, 64)])
    step.cache.fill_(3.0)
    before = step.cache.clone()
    slots = torch.full((128,), -1)
    slots[:64] = step.slots[:64]
    meta = step.build(slots)
    assert meta.write is not None
    rows = torch.randn(step.layout.num_tokens, step.kind.width)
    write_rows(step.cache, rows, meta.write)
    written = {step.row(0, p) for p in range(64)}
    real = RowIndex(meta.write.block[:64], meta.write.offset[:64])
    assert torch.equal(gather_rows(step.cache, real), rows[:64])
    for block in range(step.cache.shape[0]):
        for offset in range(step.cache.shape[1]):
            if (block, offset) not in written:
                assert torch.equal(step.cache[block, offset], before[block, offset])


@pytest.mark.parametrize(("ratio", "role"), TOKEN_KINDS)
def test_nothing_but_padding(ratio: int, role: CacheRole) -> None:
    step = Step(kinds(ratio)[role], [(0, 5)])
    meta = step.build(torch.full((5,), -1))
    assert meta.write is not None
    step.cache.fill_(3.0)
    before = step.cache.clone()
    write_rows(step.cache, torch.ones(5, step.kind.width), meta.write)
    assert torch.equal(step.cache, before)


@pytest.mark.parametrize("ratio", [0, 4, 128])
def test_a_step_without_tokens(ratio: int) -> None:
    for kind in kinds(ratio).values():
        meta = Step(kind, [(20, 0)]).build(torch.zeros(0, dtype=torch.int64))
        assert meta.write is None or len(meta.write.block) == 0


def held_bytes(*values: Any) -> dict[int, int]:
    """Bytes by address of all tensors within some values, storages once."""
    found: dict[int, int] = {}
    for value in values:
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, Mapping):
            found |= held_bytes(*value.values())
        elif isinstance(value, (list, tuple)):
            found |= held_bytes(*value)
        elif hasattr(value, "__dict__"):
            found |= held_bytes(*vars(value).values())
    return found


@pytest.mark.parametrize("ratios", [(0,), (4,), (128,), (0, 128, 4)])
def test_what_a_step_keeps_is_counted(ratios: tuple[int, ...]) -> None:
    """At the longest context; the count may be at most a fifth too large, never too small."""
    batch = [(1012, 12), (924, 100), (984, 40), (1023, 1)]
    size = StepSize(153, len(batch), 1024)
    # A group of its own for every kind, except that layers of all ratios share the window's.
    found = [kind for ratio in ratios for kind in kinds(ratio).values()]
    made = {(kind.role, kind.block_tokens): kind for kind in found}
    layout = StepLayout.build([0, 12, 112, 152, 153], [1024] * 4)
    table = torch.zeros(4, 300, dtype=torch.int32)
    slots = torch.zeros(153, dtype=torch.int64)
    metas = [build_metadata(kind, layout, table, slots) for kind in made.values()]
    held = held_bytes(metas)
    for given in (table, slots, layout.query_start, layout.seq_lens, layout.query_lens):
        held.pop(given.untyped_storage().data_ptr(), None)
    counted = metadata_bytes([[kind] for kind in made.values()], size)
    assert 0.8 * counted <= sum(held.values()) <= counted
