"""Layers in a step on the simulated NPU: the CPU's results, and no host waits."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from ascend_attention.layers.compressor import Compressor
from ascend_attention.layers.output_projection import ProjectionPart, QuantizedOutputProjection
from ascend_attention.layers.qwen2_decoder import AscendQwen2Model, Qwen2DecoderShape
from ascend_attention.ops.indexer import quantize_index_rows, select_entries
from ascend_attention.ops.paged_rows import RowIndex
from ascend_attention.step import StepLayout
from ascend_ops_core.devices import device_family
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.layers.rotary import ComplexExpRotaryEmbedding
from ascend_ops_core.testing import assert_close
from ascend_ops_core.testing.simulated_npu import counters, install

pytestmark = pytest.mark.sim

BF16 = torch.bfloat16


@pytest.fixture(scope="module", autouse=True)
def _device() -> None:
    install("A3", devices=2, memory_bytes=64 * 1024**2)


def on_npu(layout: StepLayout) -> StepLayout:
    moved = {name: getattr(layout, name).to("npu") for name in ("request", "position")}
    return dataclasses.replace(layout, **moved)


@pytest.mark.parametrize("most", [None, 20])
@pytest.mark.parametrize("eight_bits", [False, True])
def test_selection(most: int | None, eight_bits: bool) -> None:
    torch.manual_seed(1)
    layout = StepLayout.build([0, 1, 2, 4], [9, 80, 37])
    table = torch.randperm(15).view(3, 5)
    keys, scale = torch.randn(15, 8, 32), None
    if eight_bits:
        rows, place = keys.view(-1, 32), torch.arange(15 * 8)
        keys, scale = torch.zeros(15, 8, 32, dtype=torch.int8), torch.zeros(15, 8)
        quantize_index_rows(keys, scale, rows, place // 8, place % 8)
    query, weights = torch.randn(4, 16, 32), torch.randn(4, 16)
    given = query, weights, keys, table
    wanted = select_entries(*given, layout, 4, 6, key_scale=scale)
    moved = [one.to("npu") for one in given]
    moved_layout, moved_scale = on_npu(layout), None if scale is None else scale.to("npu")
    before = counters()
    got = select_entries(*moved, moved_layout, 4, 6, key_scale=moved_scale, most_entries=most)
    found = counters() - before
    assert (found.device_to_host, found.synchronisations) == (0, 0)
    assert found.launches > 0
    assert got.cpu()[0].tolist() == [0, 1, -1, -1, -1, -1]
    # Best first here; a CPU's heap keeps another order.
    assert torch.equal(got.cpu().sort(dim=1).values, wanted.sort(dim=1).values)


@pytest.mark.parametrize("ratio", [4, 128])
def test_states_and_entries(ratio: int) -> None:
    torch.manual_seed(ratio)
    rotary = ComplexExpRotaryEmbedding(8, 10000.0, 1024)
    layer = Compressor(20, 16, ratio, 1e-6, rotary, torch.float32)
    for parameter in layer.parameters():
        parameter.data.normal_()
    rows = layer.overlap * ratio
    cache = torch.randn(20, 16, 2 * layer.overlap * 16)
    block, offset = torch.randint(0, 20, (3, rows)), torch.randint(0, 16, (3, rows))
    block[2] = -1
    entry = torch.tensor([0, 3, 1])
    hidden, position = torch.randn(5, 20), torch.randint(0, 700, (5,))
    states = layer.project(hidden, position)
    entries = layer.finish_paged(cache, RowIndex(block, offset), entry, torch.float32)
    layer, rotary = layer.to("npu"), rotary.to("npu")
    moved = [one.to("npu") for one in (hidden, position, cache, block, offset, entry)]
    before = counters()
    got_states = layer.project(*moved[:2])
    index = RowIndex(moved[3], moved[4])
    got_entries = layer.finish_paged(moved[2], index, moved[5], torch.float32)
    found = counters() - before
    assert (found.device_to_host, found.synchronisations) == (0, 0)
    assert found.launches > 1
    assert_close(got_states.cpu(), states, scale=4)
    assert_close(got_entries.cpu(), entries)


@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_fp8_output_projection(tokens: int) -> None:
    """Quantised and multiplied by torch_npu on A5; refused by name elsewhere."""
    torch.manual_seed(tokens)
    layer = QuantizedOutputProjection(ProjectionPart((0, 2), (0, 64), (0, 64)), 32, 11, BF16)
    for weight in layer.parameters():
        weight.data.normal_().div_(8)
    angle = torch.rand(tokens, 4) * 6
    given = torch.randn(tokens, 4, 32).to(BF16), angle.cos(), angle.sin()
    wanted = layer(*given)
    with device_family("A5"):
        moved = layer.to("npu")
        before = counters()
        got = moved(*(one.to("npu") for one in given))
        assert (counters() - before).device_to_host == 0
    assert_close(got.cpu(), wanted, scale=4)
    if tokens:
        with device_family("A3"), pytest.raises(InvalidInputError, match="documented for A5"):
            moved(*(one.to("npu") for one in given))


@pytest.mark.parametrize("half", [3, 16])
def test_pictures_and_queries(half: int) -> None:
    torch.manual_seed(2)
    model = AscendQwen2Model(Qwen2DecoderShape(2, 64, 4, 2, 48))
    embeds = torch.randn(2, 2 * half, 64)
    with torch.no_grad():
        wanted = model(embeds)
        on_device = model.to("npu")
        given = embeds.to("npu")
        before = counters()
        got = on_device(given)
        assert (counters() - before).launches > 0
    assert_close(got.cpu(), wanted, scale=16)
