"""The compressor through paged state caches (bug case 16: every way of cutting a prompt).

Expected entries come from transformers' compressors, which see the whole prompt at once.
"""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch
from ascend_attention.caches import CacheKind, CacheRole, layer_caches
from ascend_attention.layers.compressor import Compressor
from ascend_attention.ops.compressor import compress_windows, project_states
from ascend_attention.ops.paged_rows import gather_rows, locate_rows, write_rows
from ascend_attention.step import ClosedEntries, StepLayout
from ascend_ops_core import InvalidInputError
from ascend_ops_core.layers.rotary import ComplexExpRotaryEmbedding
from ascend_ops_core.ops.rotary import YarnScaling
from ascend_ops_core.testing import assert_close
from hypothesis import given, settings
from hypothesis import strategies as st

HIDDEN = 20
HEAD = 16
CONTEXT = 512
LENGTHS = {4: (3, 4, 5), 128: (127, 128, 129, 257)}
TYPES = {4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}


class Pair:
    """Our compressor and transformers' with the same weights, and one prompt."""

    def __init__(self, ratio: int, dtype: torch.dtype = torch.float32) -> None:
        from transformers import DeepseekV4Config
        from transformers.models.deepseek_v4 import modeling_deepseek_v4 as oracle

        torch.manual_seed(ratio)
        scaling = {"factor": 4.0, "original_max_position_embeddings": 128}
        config = DeepseekV4Config(
            num_hidden_layers=1,
            layer_types=[TYPES[ratio]],
            hidden_size=HIDDEN,
            q_lora_rank=8,
            head_dim=HEAD,
            partial_rotary_factor=0.5,
            index_n_heads=2,
            index_head_dim=HEAD,
            max_position_embeddings=CONTEXT,
            rope_parameters={"rope_type": "yarn", **scaling},
        )
        self.oracle = oracle.COMPRESSOR_CLASSES[TYPES[ratio]](config)
        for parameter in self.oracle.parameters():
            parameter.data.normal_()
        rotary = ComplexExpRotaryEmbedding(
            8, config.compress_rope_theta, CONTEXT, YarnScaling(4.0, 128)
        )
        self.ours = Compressor(HIDDEN, HEAD, ratio, config.rms_norm_eps, rotary, dtype)
        both = torch.cat([self.oracle.kv_proj.weight, self.oracle.gate_proj.weight]).detach()
        self.ours.wkv_wgate.data.copy_(both / HIDDEN**0.5)
        self.oracle.kv_proj.weight.data, self.oracle.gate_proj.weight.data = (
            self.ours.wkv_wgate.data.float().chunk(2)
        )
        self.ours.ape.data.copy_(self.oracle.position_bias.data)
        self.ours.norm.data.copy_(self.oracle.kv_norm.weight.data)
        self.hidden = torch.randn(CONTEXT, HIDDEN).to(dtype)
        kinds = layer_caches(
            ratio,
            head_dim=HEAD,
            rotary_dim=0,
            index_head_dim=HEAD,
            sliding_window=16,
            dtype=dtype,
        )
        self.state, self.entries = kinds[CacheRole.COMPRESSOR_STATE], kinds[CacheRole.COMPRESSED]

    @torch.no_grad()
    def expected(self, length: int) -> torch.Tensor:
        """``[length // ratio, HEAD]`` from one uncached forward of transformers."""
        latent, positions = torch.zeros(1, length, 8), torch.arange(length)[None]
        hidden = self.hidden[None, :length].float()
        return self.oracle(hidden, latent, positions, None, 0)[0][0, 0]


class Engine:
    """State and entry caches of some requests, filled with NaN wherever nothing was written."""

    def __init__(self, pair: Pair, requests: int = 1, length: int = CONTEXT) -> None:
        self.pair = pair
        self.states, self.state_table = self._cache(pair.state, requests, length)
        self.entries, self.entry_table = self._cache(pair.entries, requests, length)

    @staticmethod
    def _cache(kind: CacheKind, requests: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        columns = -(-length // kind.block_tokens)
        blocks = requests * columns
        slab = torch.full(
            (blocks, kind.rows_per_block * kind.width + 5), float("nan"), dtype=kind.dtype
        )
        cache = slab[:, 5:].unflatten(1, (kind.rows_per_block, kind.width))
        return cache, torch.randperm(blocks).view(requests, columns)

    def step(self, batch: list[tuple[int, int]], hidden: torch.Tensor) -> ClosedEntries:
        """Process tokens ``[start, stop)`` of every request; ``hidden`` is flat."""
        ours, ratio = self.pair.ours, self.pair.ours.ratio
        starts = torch.tensor([0, *(stop - start for start, stop in batch)]).cumsum(0)
        layout = StepLayout.build(starts, [stop for _, stop in batch])
        block = self.pair.state.rows_per_block
        index = locate_rows(self.state_table, layout.request, layout.position, block)
        write_rows(self.states, ours.project(hidden, layout.position), index)
        closed = ClosedEntries.of(layout, ratio)
        position = (closed.entry.unsqueeze(-1) + 1) * ratio - torch.arange(
            ours.overlap * ratio, 0, -1
        )
        index = locate_rows(
            self.state_table, closed.request.unsqueeze(-1), position.clamp(min=0), block
        )
        rows = ours.finish(gather_rows(self.states, index), closed.entry, hidden.dtype)
        index = locate_rows(
            self.entry_table, closed.request, closed.entry, self.pair.entries.rows_per_block
        )
        write_rows(self.entries, rows, index)
        self._forget(batch)
        return closed

    def _forget(self, batch: list[tuple[int, int]]) -> None:
        """Poison the states that the declared window allows the engine to reuse."""
        assert self.pair.state.window is not None
        for request, (_, stop) in enumerate(batch):
            gone = torch.arange(max(0, stop - self.pair.state.window + 1))
            index = locate_rows(
                self.state_table, torch.tensor(request), gone, self.pair.state.rows_per_block
            )
            self.states[index.block, index.offset] = float("nan")

    def stored(self, request: int, count: int) -> torch.Tensor:
        index = locate_rows(
            self.entry_table,
            torch.tensor(request),
            torch.arange(count),
            self.pair.entries.rows_per_block,
        )
        return gather_rows(self.entries, index)


@pytest.fixture(scope="module", params=[4, 128])
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


def run(pair: Pair, cuts: list[int]) -> Engine:
    """One request in the chunks between ``cuts``; entries close exactly when they are complete."""
    engine, ratio = Engine(pair), pair.ours.ratio
    for start, stop in pairwise(cuts):
        closed = engine.step([(start, stop)], pair.hidden[start:stop])
        assert closed.entry.tolist() == list(range(start // ratio, stop // ratio))
    return engine


def check(pair: Pair, cuts: list[int], expected: torch.Tensor) -> None:
    engine = run(pair, cuts)
    got = engine.stored(0, len(expected))
    assert len(expected) == cuts[-1] // pair.ours.ratio
    assert_close(got, expected, scale=2)
    written = int((~engine.entries.isnan().all(-1)).sum())
    assert written == len(expected), "an incomplete window was emitted"


def test_every_split_of_short_prompts() -> None:
    pair = Pair(4)
    for length in LENGTHS[4]:
        expected = pair.expected(length)
        for marks in product([False, True], repeat=length - 1):
            inner = [i + 1 for i, mark in enumerate(marks) if mark]
            check(pair, [0, *inner, length], expected)


@pytest.mark.parametrize("length", LENGTHS[128])
def test_every_split_point_of_long_prompts(length: int) -> None:
    pair = Pair(128)
    expected = pair.expected(length)
    check(pair, [0, length], expected)
    for split in range(1, length):
        check(pair, [0, split, length], expected)


@pytest.mark.parametrize("chunk", [1, 3, 7, 64, 100, 127, 128, 129])
def test_chunks_of_one_size(pair: Pair, chunk: int) -> None:
    length = 270
    cuts = [*range(0, length, chunk), length]
    check(pair, cuts, pair.expected(length))


@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_batches_of_requests_in_any_chunks(data: st.DataObject) -> None:
    ratio = data.draw(st.sampled_from([4, 128]))
    pair = PAIRS.setdefault(ratio, Pair(ratio))
    lengths = data.draw(st.lists(st.integers(1, 140), min_size=2, max_size=3))
    prompts = [torch.randn(n, HIDDEN) for n in lengths]
    engine, done = Engine(pair, len(lengths), 140), [0] * len(lengths)
    while any(d < n for d, n in zip(done, lengths, strict=True)):
        new = [data.draw(st.integers(0, n - d)) for d, n in zip(done, lengths, strict=True)]
        batch = [(d, d + more) for d, more in zip(done, new, strict=True)]
        parts = [p[start:stop] for p, (start, stop) in zip(prompts, batch, strict=True)]
        engine.step(batch, torch.cat(parts))
        done = [stop for _, stop in batch]
        if not any(new):
            lengths = done
    for request, length in enumerate(done):
        if not length:
            continue
        pair.hidden = prompts[request]
        expected = pair.expected(length)
        assert_close(engine.stored(request, len(expected)), expected, scale=2)


PAIRS: dict[int, Pair] = {}


@pytest.mark.parametrize("ratio", [4, 128])
def test_bfloat16_keeps_float32_states(ratio: int) -> None:
    pair = Pair(ratio, torch.bfloat16)
    expected = pair.expected(257)
    got = run(pair, [0, 100, 257]).stored(0, len(expected))
    assert got.dtype == torch.bfloat16
    assert pair.ours.project(pair.hidden[:3], torch.arange(3)).dtype == torch.float32
    assert_close(got, expected, scale=4)


def windows_by_loops(
    rows: torch.Tensor, first: torch.Tensor, overlap: int, ratio: int, width: int
) -> torch.Tensor:
    out = torch.zeros(len(rows), width, dtype=torch.float64)
    for n in range(len(rows)):
        for d in range(width):
            kv, gate = [], []
            for i in range(overlap * ratio):
                previous = overlap == 2 and i < ratio
                if previous and first[n]:
                    continue
                channel = d if overlap == 1 or previous else width + d
                kv.append(rows[n, i, channel].double())
                gate.append(rows[n, i, overlap * width + channel].double())
            out[n, d] = (torch.stack(gate).softmax(0) * torch.stack(kv)).sum()
    return out


@pytest.mark.oracle("ascend_attention::compress_windows", "loops over channels in float64")
@pytest.mark.parametrize(("ratio", "overlap"), [(4, 2), (128, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize("entries", [0, 1, 3])
def test_pooling_equals_loops(ratio: int, overlap: int, entries: int) -> None:
    rows = 3 * torch.randn(entries, overlap * ratio, 2 * overlap * 5)
    first = torch.arange(entries) == 0
    if overlap == 2 and entries:
        rows[0, :ratio] = float("nan")
    got = compress_windows(rows, first, overlap)
    assert_close(got, windows_by_loops(rows, first, overlap, ratio, 5), scale=3)
    assert got.isfinite().all()


def test_infinite_poison_in_front_of_the_first_entry() -> None:
    for poison in (float("inf"), float("-inf"), 3e38):
        rows = torch.randn(1, 8, 8)
        clean = compress_windows(rows, torch.tensor([True]), 2)
        rows[:, :4] = poison
        assert torch.equal(compress_windows(rows, torch.tensor([True]), 2), clean)
        assert not torch.equal(compress_windows(rows, torch.tensor([False]), 2), clean)


def test_a_gate_of_one_token_decides_channel_by_channel() -> None:
    rows = torch.zeros(1, 4, 2)
    rows[0, :, 0] = torch.arange(4.0)
    rows[0, 2, 1] = 100.0
    assert float(compress_windows(rows, torch.tensor([False]), 1)) == pytest.approx(2.0)


def test_an_entry_beyond_the_rotary_table_is_refused(pair: Pair) -> None:
    ratio, overlap = pair.ours.ratio, pair.ours.overlap
    rows = torch.zeros(1, overlap * ratio, 2 * overlap * HEAD)
    with pytest.raises(InvalidInputError, match=rf"position {CONTEXT}.*max_model_len"):
        pair.ours.finish(rows, torch.tensor([CONTEXT // ratio]), torch.float32)


@pytest.mark.oracle("ascend_attention::project_states", "products in float64, bias by token")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 3, 16, 17])
@pytest.mark.parametrize(("ratio", "series"), [(4, 13), (128, 33)])
def test_states_equal_brute_force(ratio: int, series: int, tokens: int, dtype: torch.dtype) -> None:
    hidden = torch.randn(tokens, 19).to(dtype)
    weight = (torch.randn(2 * series, 19) / 19**0.5).to(dtype)
    ape, position = torch.randn(ratio, series), torch.randint(0, 3 * ratio, (tokens,))
    got = project_states(hidden, weight, ape, position)
    expected = hidden.double() @ weight.double().T
    for t in range(tokens):
        expected[t, series:] += ape[int(position[t]) % ratio]
    assert got.dtype == torch.float32
    # Whoever multiplies 16-bit tokens may round the product to 16 bits before the bias.
    assert_close(got.to(dtype), expected, scale=2)
