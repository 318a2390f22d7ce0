"""Tables that grow, their rows, and the state of a step (bug case 10: positions beyond a table)."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core import InvalidInputError
from ascend_ops_core.devices import facts_of
from ascend_ops_core.layers.rotary import ComplexExpRotaryEmbedding, precompute_freqs_cis
from ascend_ops_core.layers.rotary_cache import RotaryCache
from ascend_ops_core.layers.rotary_state import RopeDataProxy, RopeGlobalState
from ascend_ops_core.ops.rotary import rotary_frequencies
from ascend_ops_core.ops.rotary_table import gather_cos_sin, mrope_cos_sin, npu, reference
from ascend_ops_core.testing import assert_close

FREQUENCIES = rotary_frequencies(8, 1e4)


@pytest.mark.parametrize("last", [4095, 4096, 131071])
def test_a_table_that_grew_equals_one_built_whole(last: int) -> None:
    table = RotaryCache(FREQUENCIES, 4096, limit=131072, scale=1.25)
    whole = RotaryCache(FREQUENCIES, 131072, scale=1.25)
    positions = torch.tensor([0, 4095, last])
    for got, expected in zip(table.gather(positions), whole.gather(positions), strict=True):
        assert torch.equal(got, expected)
    assert last < table.positions <= 131072
    assert torch.equal(table.cos, whole.cos[: table.positions])


@pytest.mark.parametrize("position", [4096, 131071])
def test_a_table_that_may_not_grow_names_limit_and_position(position: int) -> None:
    table = RotaryCache(FREQUENCIES, 4096)
    with pytest.raises(InvalidInputError, match=rf"position {position}: .*0 to 4095.*max_model"):
        table.gather(torch.tensor([1, position]))
    assert table.positions == 4096
    with pytest.raises(InvalidInputError, match=r"position -1"):
        table.gather(torch.tensor([-1, 3]))
    with pytest.raises(InvalidInputError, match=r"positions=5.*limit=4"):
        RotaryCache(FREQUENCIES, 5, limit=4)


def test_nothing_of_it_is_in_a_checkpoint() -> None:
    assert not RotaryCache(FREQUENCIES, 4).state_dict()


@pytest.mark.oracle("ascend_ops_core::gather_cos_sin", "row by row in the test")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 7])
@pytest.mark.parametrize("table", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rows_by_position(tokens: int, dtype: torch.dtype, table: torch.dtype) -> None:
    cos, sin = torch.randn(9, 5).to(table), torch.randn(9, 5).to(table)
    positions = torch.randint(0, 9, (tokens,), dtype=dtype)
    got = gather_cos_sin(cos, sin, positions)
    for t in range(tokens):
        assert torch.equal(got[0][t], cos[int(positions[t])])
        assert torch.equal(got[1][t], sin[int(positions[t])])
    assert got[0].shape == (tokens, 5)
    assert got[0].dtype == got[1].dtype == table


@pytest.mark.parametrize("table", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_row_outside_is_nan_where_it_is_not_refused(table: torch.dtype) -> None:
    cos, sin = torch.ones(3, 2, dtype=table), torch.zeros(3, 2, dtype=table)
    got = reference.gather_cos_sin(cos, sin, torch.tensor([2, 3, -1]))
    assert got[0].isnan().all(1).tolist() == [False, True, True]
    assert got[1].dtype == table


@pytest.mark.oracle("ascend_ops_core::mrope_cos_sin", "transformers' Qwen2-VL and Qwen3-VL")
def test_sections_equal_transformers() -> None:
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

    positions = torch.randint(0, 50, (3, 7))
    sections = [6, 5, 5]
    parameters = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections}
    config = Qwen3VLTextConfig(head_dim=32, rope_parameters=parameters)
    oracle = Qwen3VLTextRotaryEmbedding(config)(torch.zeros(1), positions[:, None])
    table = RotaryCache(rotary_frequencies(32, 1e4), 50)
    cos, sin = table.cos, table.sin
    got = mrope_cos_sin(cos, sin, positions, sections, interleaved=True)
    for one, expected in zip(got, oracle, strict=True):
        assert_close(one.repeat(1, 2), expected[0])
    # Qwen2-VL picks block i from the positions of kind i.
    got = mrope_cos_sin(cos, sin, positions, sections)
    for one, whole in zip(got, (cos, sin), strict=True):
        blocks = whole[positions].split(sections, dim=-1)
        assert torch.equal(one, torch.cat([block[i] for i, block in enumerate(blocks)], -1))


def test_three_equal_positions_are_text() -> None:
    table = RotaryCache(FREQUENCIES, 64)
    positions = torch.randint(0, 64, (5,))
    for interleaved in (False, True):
        got = table.gather_mrope(positions.expand(3, 5), [2, 1, 1], interleaved)
        assert torch.equal(got[0], table.gather(positions)[0])


@pytest.mark.parametrize(
    ("sections", "interleaved"), [([2, 2], False), ([2, 2, 1], False), ([0, 0, 4], True)]
)
def test_sections_that_do_not_fit_are_refused(sections: list[int], interleaved: bool) -> None:
    table = torch.zeros(3, 4)
    with pytest.raises(InvalidInputError, match=r"mrope_section"):
        mrope_cos_sin(table, table, torch.zeros(3, 1, dtype=torch.int64), sections, interleaved)


def test_wrong_tables_and_positions_are_refused() -> None:
    table, place = torch.zeros(3, 4), torch.tensor([0])
    for arguments, text in (
        ((table.half(), table, place), "float16"),
        ((table, table[:2], place), r"\[2, 4\]"),
        ((table, table, place.float()), "float32"),
        ((table, table, place[None]), r"\[1, 1\]"),
        ((table, table, torch.tensor([3])), "position 3.*0 to 2"),
    ):
        with pytest.raises(InvalidInputError, match=text):
            gather_cos_sin(*arguments)
    wide = torch.zeros(1, 2000)
    assert "2000" in npu.supports_gather_cos_sin_triton(facts_of("A2"), wide, wide, place).reason


def test_complex_numbers_turn_as_the_table_does() -> None:
    table = ComplexExpRotaryEmbedding(8, 1e4, 16)
    cis = precompute_freqs_cis(8, 1e4, 16)
    x = torch.randn(3, 2, 8)
    positions = torch.tensor([0, 5, 15])
    turned = torch.view_as_complex(x.view(3, 2, 4, 2)) * cis[positions][:, None]
    assert_close(table(positions, x), torch.view_as_real(turned).flatten(-2))


@pytest.fixture
def state() -> RopeGlobalState:
    tables = {
        "main": RotaryCache(FREQUENCIES, 8, limit=64),
        "compressed": RotaryCache(FREQUENCIES / 4, 8, limit=64),
    }
    return RopeGlobalState(tables, max_tokens=6, drafts=1)


def test_a_step_keeps_its_rows_where_a_graph_reads_them(state: RopeGlobalState) -> None:
    before = state.get_cos_and_sin_slice(6, "compressed")
    proxy = RopeDataProxy(state, "compressed")
    for positions in (torch.tensor([5, 6, 7, 1]), torch.tensor([40, 2])):
        state.update_cos_sin(positions, padded=5)
        tokens = positions.shape[0]
        expected = state.tables["compressed"].gather(positions)
        assert torch.equal(before[0][:tokens], expected[0])
        assert torch.equal(before[1][tokens:5], torch.zeros(5 - tokens, 4))
        assert torch.equal(before[0][tokens:5], torch.ones(5 - tokens, 4))
        assert proxy.rows(tokens)[0].data_ptr() == before[0].data_ptr()


def test_a_draft_has_buffers_of_its_own(state: RopeGlobalState) -> None:
    target, draft = torch.tensor([1, 2]), torch.tensor([3, 4])
    state.update_cos_sin(target)
    state.update_cos_sin(draft, draft=1)
    for positions, which in ((target, 0), (draft, 1)):
        rows = state.get_cos_and_sin_dsa(positions, use_cache=True, draft=which)
        for name, (cos, sin) in state.get_cos_and_sin_dsa(positions).items():
            assert torch.equal(rows[name][0], cos)
            assert torch.equal(rows[name][1], sin)


def test_rows_for_mla_and_whole_tables(state: RopeGlobalState) -> None:
    positions = torch.tensor([3, 1])
    state.update_cos_sin(positions)
    fresh = state.get_cos_and_sin_mla(positions)
    assert fresh[0].shape == (2, 1, 4)
    for one, cached in zip(fresh, state.get_cos_and_sin_mla(positions, True), strict=True):
        assert torch.equal(one, cached)
    state.set_cos_and_sin(64)
    assert {cos.shape[0] for cos, _ in state.get_full_cos_and_sin_dsa().values()} == {64}


def test_two_states_share_nothing(state: RopeGlobalState) -> None:
    other = RopeGlobalState({"main": RotaryCache(FREQUENCIES, 8)}, 6)
    state.update_cos_sin(torch.tensor([7]))
    assert torch.equal(other.get_cos_and_sin_slice(1)[0], torch.ones(1, 4))


def test_wrong_steps_are_refused(state: RopeGlobalState) -> None:
    for call, text in (
        (lambda: state.update_cos_sin(torch.arange(7)), "7 tokens.*at most 6"),
        (lambda: state.update_cos_sin(torch.arange(3), padded=2), "3 tokens padded to 2"),
        (lambda: state.update_cos_sin(torch.arange(3), draft=2), "draft 2.*0 to 1"),
        (lambda: state.get_cos_and_sin_slice(7), "7 tokens.*at most 6"),
        (lambda: RopeDataProxy(state, "indexer"), "'indexer'.*main, compressed"),
        (lambda: RopeGlobalState({}, 4), "0 tables"),
        (lambda: state.update_cos_sin(torch.tensor([64])), "position 64.*0 to 63"),
    ):
        with pytest.raises(InvalidInputError, match=text):
            call()
