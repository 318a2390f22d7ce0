"""Every variant of the output projection equals the whole projection of each rank's own tokens."""

from __future__ import annotations

import subprocess
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_attention.layers.output_projection import (
    ExchangedOutputProjection,
    LatentParallelOutputProjection,
    OutputProjection,
    ProjectionPart,
    ProjectionSettings,
    QuantizedExchangedOutputProjection,
    QuantizedLatentParallelOutputProjection,
    QuantizedOutputProjection,
    choose_projection,
)
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.quantization import mxfp8_dequantize, mxfp8_quantize
from ascend_ops_core.static_buffers import StaticBuffers
from ascend_ops_core.testing import assert_close
from ascend_ops_core.testing.simulated_group import on_ranks

HIDDEN, WIDTH, PAIRS, RANK = 11, 8, 2, 6
# For each rank: zero tokens, one, an odd number; then as many as there are ranks, shifted.
TOKENS = ((3, 0, 1, 5, 2), (0, 4, 4, 1, 0), (0, 0, 0, 0, 0), (2, 2, 2, 2, 2))
PROCESSES = 3
CAPACITY = 4
"""Less than the largest number of tokens, so that steps with and without buffers are there."""


def settings(groups: int, heads: int, **changes: Any) -> ProjectionSettings:
    plain = ProjectionSettings("cpu", heads, WIDTH, groups, RANK, torch.float32)
    return replace(plain, **changes)


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weights(model: ProjectionSettings) -> tuple[torch.Tensor, torch.Tensor]:
    channels = model.group_channels
    wo_a = drawn(model.groups, model.rank, channels, seed=1) / channels**0.5
    wo_b = drawn(HIDDEN, model.groups * model.rank, seed=2) / (model.groups * model.rank) ** 0.5
    return wo_a, wo_b


def inputs(tokens: int, heads: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    angle = drawn(tokens, PAIRS, seed=seed + 100)
    return drawn(tokens, heads, WIDTH, seed=seed), angle.cos(), angle.sin()


def whole(
    model: ProjectionSettings, attended: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """The projection in double precision: rotate back, one matrix for each group, one for all.

    With a model of 16 bits its weights are those that MXFP8 holds.
    """
    wo_a, wo_b = (one.double() for one in weights(model))
    if model.dtype != torch.float32:
        wo_a, wo_b = (held(one.to(model.dtype)) for one in (wo_a, wo_b))
    out = attended.double().clone()
    first = WIDTH - 2 * PAIRS
    even, odd = out[..., first::2].clone(), out[..., first + 1 :: 2].clone()
    c, s = cos.double().unsqueeze(1), sin.double().unsqueeze(1)
    out[..., first::2] = even * c + odd * s
    out[..., first + 1 :: 2] = odd * c - even * s
    per_group = model.heads // model.groups
    latents = [
        out[:, g * per_group : (g + 1) * per_group].flatten(1) @ wo_a[g].T
        for g in range(model.groups)
    ]
    return torch.cat(latents, 1) @ wo_b.T


def held(weight: torch.Tensor) -> torch.Tensor:
    return mxfp8_dequantize(*mxfp8_quantize(weight), torch.float32).double()


def fill(layer: OutputProjection, model: ProjectionSettings, part: ProjectionPart) -> None:
    wo_a, wo_b = weights(model)
    layer.wo_a.data.copy_(wo_a[slice(*part.groups), :, slice(*part.channels)])
    layer.wo_b.data.copy_(wo_b[:, slice(*part.latents)])


def otp_layer(
    model: ProjectionSettings,
    group: Any,
    rows: int,
    capacity: int,
    kind: type[ExchangedOutputProjection] = ExchangedOutputProjection,
) -> tuple[ExchangedOutputProjection, StaticBuffers]:
    buffers = StaticBuffers()
    part = ProjectionPart.of(model, 0, group.rank_in_group)
    layer = kind(
        part, model.rank, HIDDEN, model.dtype, group, buffers, capacity, "cpu", lambda _: rows
    )
    fill(layer, model, part)
    return layer, buffers


def olora_layer(
    model: ProjectionSettings,
    group: Any,
    tensor_rank: int,
    capacity: int,
    kind: type[LatentParallelOutputProjection] = LatentParallelOutputProjection,
) -> LatentParallelOutputProjection:
    part = ProjectionPart.of(model, tensor_rank)
    layer = kind(part, model.rank, HIDDEN, model.dtype, group, StaticBuffers(), capacity, "cpu")
    fill(layer, model, part)
    return layer


@pytest.mark.parametrize("capacity", [0, CAPACITY])
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_otp(ranks: int, tokens: tuple[int, ...], capacity: int) -> None:
    """Ranks with different numbers of tokens; one padding row more than the largest, twice."""
    model = settings(2 * ranks, 4 * ranks, data_parallel=ranks, exchange=ranks)
    most = max(tokens[:ranks])

    def one(group: Any) -> list[torch.Tensor]:
        own = inputs(tokens[group.rank_in_group], model.heads, group.rank_in_group)
        layer, buffers = otp_layer(model, group, most + (most > 0), capacity)
        if capacity:
            # What another layer or an earlier step left there must not show.
            buffers["o_proj_send"].fill_(float("nan"))
        outputs = [layer(*own), layer(*own)]
        if capacity > most:
            # Padding rows travel as zeros, not as what memory held.
            assert buffers.parts("o_proj_received", most + (most > 0)).isfinite().all()
        return outputs

    for rank, outputs in enumerate(on_ranks(ranks, one)):
        expected = whole(model, *inputs(tokens[rank], model.heads, rank))
        for output in outputs:
            assert output.shape == expected.shape
            assert_close(output, expected)


@pytest.mark.parametrize("capacity", [0, CAPACITY])
@pytest.mark.parametrize("tokens", [0, 1, 3, 5])
@pytest.mark.parametrize(("groups", "shared"), [(1, 2), (1, 3), (2, 3), (3, 2), (1, 6)])
def test_olora_tp(groups: int, shared: int, tokens: int, capacity: int) -> None:
    """The tensor-parallel ranks' terms add up to the whole projection of the same tokens."""
    size = groups * shared
    model = settings(groups, 2 * size, tensor_parallel=size)
    attended, cos, sin = inputs(tokens, model.heads, 0)
    total = torch.zeros(tokens, HIDDEN, dtype=torch.float64)
    for group_index in range(groups):

        def one(group: Any, first: int = group_index * shared) -> torch.Tensor:
            tensor_rank = first + group.rank_in_group
            layer = olora_layer(model, group, tensor_rank, capacity)
            return layer(attended[:, 2 * tensor_rank : 2 * tensor_rank + 2], cos, sin)

        total += torch.stack(on_ranks(shared, one)).double().sum(0)
    torch.testing.assert_close(total, whole(model, attended, cos, sin), rtol=1e-5, atol=1e-5)


def test_otp_within_tensor_parallelism() -> None:
    """Two tensor-parallel ranks, each with a group of two that exchange tokens."""
    model = settings(4, 8, tensor_parallel=2, data_parallel=2, exchange=2)
    own = [inputs(n, model.heads, seed) for seed, n in enumerate((3, 1))]
    terms = []
    for tensor_rank in range(2):
        heads = slice(4 * tensor_rank, 4 * tensor_rank + 4)

        def one(group: Any, tensor_rank: int = tensor_rank, heads: slice = heads) -> torch.Tensor:
            part = ProjectionPart.of(model, tensor_rank, group.rank_in_group)
            layer = ExchangedOutputProjection(
                part, RANK, HIDDEN, torch.float32, group, StaticBuffers(), 3, "cpu", lambda _: 3
            )
            fill(layer, model, part)
            attended, cos, sin = own[group.rank_in_group]
            return layer(attended[:, heads], cos, sin)

        terms.append(on_ranks(2, one))
    for replica in range(2):
        assert_close(terms[0][replica] + terms[1][replica], whole(model, *own[replica]))


@pytest.mark.parametrize(
    ("size", "exchange", "chosen"),
    [
        (1, 1, "plain"),
        (2, 1, "plain"),
        (6, 1, "plain"),
        (1, 2, "otp"),
        (3, 2, "otp"),
        (2, 3, "otp"),
        (12, 1, "olora_tp"),
    ],
)
def test_parts_cover_both_weights_once(size: int, exchange: int, chosen: str) -> None:
    model = settings(6, 24, tensor_parallel=size, data_parallel=exchange, exchange=exchange)
    assert choose_projection("auto", model).variant.name == chosen
    first, second = torch.zeros(6, 4 * WIDTH), torch.zeros(6 * RANK)
    for tensor_rank in range(size):
        for exchange_rank in range(exchange):
            part = ProjectionPart.of(model, tensor_rank, exchange_rank)
            first[slice(*part.groups), slice(*part.channels)] += 1
            second[slice(*part.latents)] += 1
    assert first.eq(1).all()
    assert second.eq(1).all()


@pytest.mark.parametrize("tokens", [0, 1, 5])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fp8_is_the_projection_of_dequantised_weights(tokens: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    part = ProjectionPart((0, 2), (0, 128), (0, 64))
    layer = QuantizedOutputProjection(part, 32, HIDDEN, dtype)
    layer.wo_a.data.copy_(torch.randn(2, 32, 128) / 128**0.5)
    layer.wo_b.data.copy_(torch.randn(HIDDEN, 64) / 8)
    stored = [one.data.clone() for one in (layer.wo_a, layer.wo_b)]
    attended, cos, sin = inputs(tokens, 32, 0)
    attended = attended.to(dtype)
    layer.quantize_weights()
    got = layer(attended, cos, sin)
    assert got.shape == (tokens, HIDDEN)
    assert layer.wo_a.dtype == layer.wo_b.dtype == torch.float8_e4m3fn

    plain = OutputProjection(part, 32, HIDDEN, torch.float32)
    for name, weight in zip(("wo_a", "wo_b"), stored, strict=True):
        back = mxfp8_dequantize(*mxfp8_quantize(weight), torch.float32)
        getattr(plain, name).data.copy_(back)
    expected = plain(attended.float(), cos, sin)
    # Tokens and the low rank are rounded to the format too: 2^-4 of a value at most.
    bound = 2**-4 * (expected.square().mean().sqrt() if tokens else 0)
    assert not tokens or (got.float() - expected).square().mean().sqrt() <= bound


def loosely(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Tokens and the low rank are rounded to the format: 2^-4 of a value at most."""
    assert got.shape == expected.shape
    if got.numel():
        error = (got.double() - expected).square().mean().sqrt()
        assert error <= 2**-4 * expected.square().mean().sqrt()


@pytest.mark.parametrize("capacity", [0, CAPACITY])
@pytest.mark.parametrize("tokens", [(3, 5), (0, 4), (0, 0), (1, 1)])
def test_otp_fp8(tokens: tuple[int, ...], capacity: int) -> None:
    model = settings(4, 32, data_parallel=2, exchange=2, rank=32, dtype=torch.bfloat16)
    most = max(tokens)

    def one(group: Any) -> torch.Tensor:
        attended, *rotation = inputs(tokens[group.rank_in_group], model.heads, group.rank_in_group)
        kind = QuantizedExchangedOutputProjection
        layer, _ = otp_layer(model, group, most, capacity, kind)
        first = layer(attended.bfloat16(), *rotation)
        if most:
            assert layer.wo_a.dtype == layer.wo_b.dtype == torch.float8_e4m3fn
        assert torch.equal(layer(attended.bfloat16(), *rotation), first)
        return first

    for rank, got in enumerate(on_ranks(2, one)):
        loosely(got, whole(model, *inputs(tokens[rank], model.heads, rank)))


@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_olora_tp_fp8(tokens: int) -> None:
    model = settings(1, 16, tensor_parallel=2, rank=128, dtype=torch.bfloat16)
    attended, cos, sin = inputs(tokens, model.heads, 0)

    def one(group: Any) -> torch.Tensor:
        rank = group.rank_in_group
        kind = QuantizedLatentParallelOutputProjection
        layer = olora_layer(model, group, rank, CAPACITY, kind)
        return layer(attended[:, 8 * rank : 8 * rank + 8].bfloat16(), cos, sin)

    loosely(torch.stack(on_ranks(2, one)).double().sum(0), whole(model, attended, cos, sin))


@pytest.mark.parametrize(
    ("asked", "changes", "chosen"),
    [
        ("auto", {}, "plain"),
        ("auto", {"family": "A5", "dtype": torch.bfloat16, "rank": 1024}, "plain"),
        ("auto", {"tensor_parallel": 8}, "plain"),
        ("auto", {"tensor_parallel": 16}, "olora_tp"),
        ("auto", {"data_parallel": 4, "exchange": 2}, "otp"),
        ("otp", {"data_parallel": 4, "exchange": 4, "tensor_parallel": 2}, "otp"),
        ("fp8", {"family": "A5", "dtype": torch.bfloat16}, "fp8"),
        (
            "otp_fp8",
            {"family": "A5", "dtype": torch.float16, "data_parallel": 4, "exchange": 2},
            "otp_fp8",
        ),
        (
            "olora_tp_fp8",
            {"family": "A5", "dtype": torch.bfloat16, "tensor_parallel": 16},
            "olora_tp_fp8",
        ),
    ],
)
def test_the_choice(asked: str, changes: dict[str, Any], chosen: str) -> None:
    base = ProjectionSettings("A3", 64, 512, 8, 1024, torch.float32)
    choice = choose_projection(asked, replace(base, **changes))
    assert choice.variant.name == chosen
    assert chosen not in dict(choice.refused)
    assert all(reason for _, reason in choice.refused)


@pytest.mark.parametrize(
    ("asked", "changes", "message"),
    [
        (
            "opt",
            {},
            r"o_proj='opt': known are auto, plain, otp, olora_tp, fp8, otp_fp8, olora_tp_fp8",
        ),
        ("auto", {"tensor_parallel": 6}, r"plain: tensor_parallel_size=6 must divide o_groups=8"),
        ("plain", {"tensor_parallel": 16}, r"must divide o_groups=8\. Use olora_tp\."),
        ("plain", {"exchange": 2, "data_parallel": 2}, r"=2 is for otp and otp_fp8\. Use otp\."),
        ("otp", {"exchange": 1}, r"o_proj_tensor_parallel_size=1, at least 2.*Use plain\."),
        ("otp", {"exchange": 2, "data_parallel": 3}, r"=2 must divide data_parallel_size=3"),
        ("otp", {"exchange": 16, "data_parallel": 16}, r"=16 must divide the 8 groups"),
        ("olora_tp", {"tensor_parallel": 8}, r"=8 must be a multiple of o_groups=8 beyond it"),
        ("olora_tp", {"tensor_parallel": 48}, r"=48 must divide num_attention_heads=64"),
        ("olora_tp", {"tensor_parallel": 64, "rank": 12}, r"8 ranks share a group.*o_lora_rank=12"),
        ("fp8", {}, r"fp8: it exists on A5, not on A3\. Use plain\."),
        ("fp8", {"family": "cpu"}, r"it exists on A5, not on cpu"),
        ("fp8", {"family": "A5", "dtype": torch.float32}, r"dtype torch.float32.*bfloat16"),
        ("fp8", {"family": "A5", "head_dim": 4}, r"channels of a group=32.*multiple of 64"),
        (
            "fp8",
            {"family": "A5", "exchange": 2, "data_parallel": 2},
            r"=2 is for otp and otp_fp8\. Use otp or otp_fp8\.",
        ),
        ("fp8", {"family": "A5", "tensor_parallel": 16}, r"Use olora_tp or olora_tp_fp8\."),
        ("otp_fp8", {}, r"otp_fp8: it exists on A5, not on A3"),
        ("otp_fp8", {"family": "A5"}, r"at least 2 ranks exchange.*Use plain or fp8"),
        (
            "olora_tp_fp8",
            {"family": "A5", "tensor_parallel": 64, "rank": 64},
            r"a rank's low-rank channels=8 must be a multiple of 64",
        ),
        ("plain", {"family": "310P"}, r"it exists on cpu, A2, A3, A5, not on 310P.*Change the"),
    ],
)
def test_what_is_refused_and_what_to_do(asked: str, changes: dict[str, Any], message: str) -> None:
    base = ProjectionSettings("A3", 64, 512, 8, 1024, torch.bfloat16)
    with pytest.raises(InvalidInputError, match=message):
        choose_projection(asked, replace(base, **changes))


def gloo_rank(rank: int, folder: Path) -> None:
    """As one of three processes, run both exchanging variants among three ranks and among two."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=PROCESSES
    )
    for ranks in (3, 2):
        here = dist.new_group(list(range(ranks)))
        if rank < ranks:
            compare_on(group_of(here, rank, ranks))
    dist.destroy_process_group()


def group_of(here: Any, rank: int, ranks: int) -> Any:
    """What the layers use of a group, by torch.distributed."""
    import torch.distributed as dist

    def reduce_scatter(x: torch.Tensor, dim: int) -> torch.Tensor:
        part = x.new_empty(x.shape[0] // ranks, *x.shape[1:])
        dist.reduce_scatter_tensor(part, x, group=here)
        return part

    def all_reduce(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x, group=here)
        return x

    return SimpleNamespace(
        rank_in_group=rank,
        world_size=ranks,
        device_group=here,
        reduce_scatter=reduce_scatter,
        all_reduce=all_reduce,
    )


def compare_on(group: Any) -> None:
    rank, ranks = group.rank_in_group, group.world_size
    model = settings(2 * ranks, 4 * ranks, data_parallel=ranks, exchange=ranks)
    for tokens in TOKENS:
        own = inputs(tokens[rank], model.heads, rank)
        layer, _ = otp_layer(model, group, max(tokens[:ranks]), CAPACITY)
        assert_close(layer(*own), whole(model, *own))
    model = settings(1, 2 * ranks, tensor_parallel=ranks)
    for count in (0, 1, 3, 5):
        attended, cos, sin = inputs(count, model.heads, 0)
        layer = olora_layer(model, group, rank, CAPACITY)
        term = layer(attended[:, 2 * rank : 2 * rank + 2], cos, sin)
        assert_close(group.all_reduce(term), whole(model, attended, cos, sin))


def test_between_processes(tmp_path: Path) -> None:
    started = [
        subprocess.Popen([sys.executable, __file__, str(rank), str(tmp_path)])
        for rank in range(PROCESSES)
    ]
    for process in started:
        process.wait(120)
    files = [tmp_path / f"report.{rank}" for rank in range(PROCESSES)]
    texts = [one.read_text() if one.exists() else "no report" for one in files]
    assert texts == ["passed"] * PROCESSES, "\n".join(texts)


if __name__ == "__main__":
    own_rank, place = int(sys.argv[1]), Path(sys.argv[2])
    report = "passed"
    try:
        gloo_rank(own_rank, place)
    except BaseException:
        report = traceback.format_exc()
    (place / f"report.{own_rank}").write_text(report)
