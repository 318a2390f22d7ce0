"""Steps of a few tokens on a CPU: the fused kernels against the chain of operators.

They live in ascend_attention, whose own tests run without vLLM.
"""

from __future__ import annotations

import pytest
import torch
from ascend_attention.caches import CacheKind, CacheRole, layer_caches
from ascend_attention.layers.compressor import Compressor
from ascend_attention.layers.indexer import DeepseekV4Indexer
from ascend_attention.step import StepLayout
from ascend_attention.vllm.dsa.cache_layers import PagedCacheLayer
from ascend_attention.vllm.dsa.impl import AscendDSAImpl, DSAInputs
from ascend_attention.vllm.dsa.metadata import DeferredDSAMetadata
from ascend_attention.vllm.dsa.parts import DSAParts
from ascend_ops_core.layers.rotary import ComplexExpRotaryEmbedding
from torch import nn

pytest.importorskip("numba")

HIDDEN, LATENT, HEADS, WIDTH, ROTARY, WINDOW = 24, 16, 3, 12, 4, 8
INDEX_HEADS, INDEX_WIDTH, TOP_K = 2, 8, 3
REQUESTS, LONGEST = 3, 300

# (tokens computed before, tokens of this step) for every request, step after step.
STEPS = {
    "first tokens": [[(0, 1), (0, 0), (0, 2)], [(1, 1), (0, 1), (2, 2)]],
    "decode": [[(126, 1), (3, 1), (255, 1)], [(127, 1), (4, 1), (256, 1)]],
    "drafts": [[(126, 4), (0, 5), (61, 7)], [(128, 3), (2, 3), (64, 4)]],
}


class Cache(PagedCacheLayer):
    """A paged cache with the metadata of the step at hand, without an engine."""

    def __init__(self, kind: CacheKind, kv_cache: torch.Tensor, table: torch.Tensor) -> None:
        nn.Module.__init__(self)
        self.kind, self.table = kind, table
        self.given: DeferredDSAMetadata | None = None
        self.bind_kv_cache(kv_cache)

    def step(self) -> DeferredDSAMetadata | None:
        return self.given

    def slots(self, batch: list[tuple[int, int]]) -> torch.Tensor:
        size = self.kind.block_tokens
        return torch.tensor(
            [
                int(self.table[r, p // size]) * size + p % size
                for r, (before, new) in enumerate(batch)
                for p in range(before, before + new)
            ]
        )


def attention(ratio: int, dtype: torch.dtype) -> AscendDSAImpl:
    """A layer with random weights, whose caches hold random rows: nothing of it is NaN."""
    torch.manual_seed(ratio)
    rotary = ComplexExpRotaryEmbedding(ROTARY, 10000.0, LONGEST)
    compressor = Compressor(HIDDEN, WIDTH, ratio, 1e-6, rotary, dtype) if ratio else None
    indexer = None
    if ratio == 4:
        indexer = DeepseekV4Indexer(
            HIDDEN, LATENT, INDEX_HEADS, INDEX_WIDTH, TOP_K, ratio, 1e-6, rotary, dtype
        )
    for module in (compressor, indexer):
        for one in module.parameters() if module is not None else ():
            one.copy_(torch.randn(one.shape) * 0.3)
    kinds = layer_caches(
        ratio,
        head_dim=WIDTH,
        rotary_dim=ROTARY,
        index_head_dim=INDEX_WIDTH,
        sliding_window=WINDOW,
        dtype=dtype,
    )
    caches = {role: _cache(kind) for role, kind in kinds.items()}
    sinks = nn.Parameter(torch.randn(HEADS), requires_grad=False)
    parts = DSAParts(WIDTH**-0.5, sinks, caches, compressor, indexer)  # type: ignore[arg-type]
    return AscendDSAImpl(parts)


def _cache(kind: CacheKind) -> Cache:
    columns = LONGEST // kind.block_tokens + 1
    table = (torch.randperm(REQUESTS * columns) + 1).view(REQUESTS, columns).int()
    # A view into a slab with room beside every row, like the engine's.
    slab = torch.randn(REQUESTS * columns + 1, kind.rows_per_block, kind.width + 3).to(kind.dtype)
    return Cache(kind, slab[:, :, : kind.width], table)


def step(
    impl: AscendDSAImpl, batch: list[tuple[int, int]], dtype: torch.dtype, skipped: int | None
) -> torch.Tensor:
    """Run a step; the token ``skipped`` has no slot, like padding."""
    starts = torch.tensor([0, *(new for _, new in batch)]).cumsum(0)
    layout = StepLayout.build(starts, [before + new for before, new in batch])
    for cache in impl.parts.caches.values():
        slots = cache.slots(batch)  # type: ignore[attr-defined]
        if skipped is not None:
            slots[skipped] = -1
        given = DeferredDSAMetadata(cache.kind, lambda: layout, cache.table, slots)  # type: ignore[attr-defined]
        cache.given = given  # type: ignore[attr-defined]
    tokens = layout.num_tokens
    generator = torch.Generator().manual_seed(tokens)

    def given(*shape: int, of: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(tokens, *shape, generator=generator).to(of)

    angle = given(ROTARY // 2, of=torch.float32)
    return impl.forward(
        DSAInputs(
            given(HIDDEN),
            given(LATENT),
            given(HEADS, WIDTH),
            given(WIDTH),
            angle.cos(),
            angle.sin(),
        )
    )


@pytest.mark.parametrize("skipped", [None, 1], ids=["all written", "one padding slot"])
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("ratio", [0, 4, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_fused_step_is_the_chain_of_operators(
    dtype: torch.dtype,
    ratio: int,
    steps: list[list[tuple[int, int]]],
    skipped: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fused, chain = attention(ratio, dtype), attention(ratio, dtype)
    monkeypatch.setattr(chain.few_tokens, "kernels", lambda query: None)
    for batch in steps:
        found, expected = (step(impl, batch, dtype, skipped) for impl in (fused, chain))
        assert fused.few_tokens.kernels(found) is not None
        # The same arithmetic, of which a compiler may regroup sums: a rounding step apart.
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
        for role, cache in fused.parts.caches.items():
            torch.testing.assert_close(
                cache.kv_cache, chain.parts.caches[role].kv_cache, rtol=tolerance, atol=tolerance
            )


def test_a_row_outside_a_cache_changes_nothing() -> None:
    impl = attention(4, torch.float32)
    cache = impl.parts.caches[CacheRole.SLIDING_WINDOW]
    cache.table[0, 0] = cache.kv_cache.shape[0]  # type: ignore[attr-defined]
    before = {role: one.kv_cache.clone() for role, one in impl.parts.caches.items()}
    with pytest.raises(IndexError, match="outside its cache"):
        step(impl, [(0, 1)], torch.float32, None)
    for role, one in impl.parts.caches.items():
        assert torch.equal(one.kv_cache, before[role])
