"""The table of cos and sin (bug case 10: positions beyond it)."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core import InvalidInputError
from ascend_ops_core.layers.rotary import ComplexExpRotaryEmbedding
from ascend_ops_core.ops.rotary import YarnScaling
from ascend_ops_core.testing import assert_close


@pytest.fixture(scope="module")
def table() -> ComplexExpRotaryEmbedding:
    return ComplexExpRotaryEmbedding(8, 10000.0, 4096)


def test_the_last_position_is_served(table: ComplexExpRotaryEmbedding) -> None:
    cos, sin = table.gather(torch.tensor([0, 4095]))
    assert torch.equal(cos[0], torch.ones(4))
    assert torch.equal(sin[0], torch.zeros(4))
    assert_close(cos[1, 0], torch.tensor(4095.0).double().cos(), scale=10)


@pytest.mark.parametrize("position", [4096, 131071, -1])
@pytest.mark.parametrize("place", [0, 2])
def test_a_position_outside_names_itself_and_the_limit(
    table: ComplexExpRotaryEmbedding, position: int, place: int
) -> None:
    positions = torch.tensor([7, 4095, 0])
    positions[place] = position
    expected = rf"position {position}: .*positions 0 to 4095.*max_model_len"
    with pytest.raises(InvalidInputError, match=expected):
        table.gather(positions)
    with pytest.raises(InvalidInputError, match=expected):
        table(positions, torch.zeros(3, 1, 8))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_positions_of_any_integer_dtype(
    table: ComplexExpRotaryEmbedding, dtype: torch.dtype
) -> None:
    positions = torch.tensor([3, 1, 3], dtype=dtype)
    cos, _ = table.gather(positions)
    assert torch.equal(cos[0], cos[2])
    assert table.gather(positions[:0])[0].shape == (0, 4)


def test_equals_transformers_in_both_branches() -> None:
    from transformers import DeepseekV4Config
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4RotaryEmbedding

    yarn = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 256}
    config = DeepseekV4Config(
        num_hidden_layers=2,
        hidden_size=64,
        head_dim=64,
        partial_rotary_factor=0.25,
        max_position_embeddings=4096,
        rope_parameters=yarn,
    )
    oracle = DeepseekV4RotaryEmbedding(config)
    positions = torch.arange(0, 4096, 37)
    for branch, ours in (
        ("main", ComplexExpRotaryEmbedding(16, 1e4, 4096)),
        ("compress", ComplexExpRotaryEmbedding(16, 1.6e5, 4096, YarnScaling(16.0, 256))),
    ):
        cos, sin = oracle(torch.zeros(1), positions[None], layer_type=branch)
        # Angles reach 4096 radians, where float32 resolves 2.4e-4.
        assert_close(ours.gather(positions)[0], cos[0], scale=100)
        assert_close(ours.gather(positions)[1], sin[0], scale=100)


def test_the_table_rotates_trailing_channels_and_back(table: ComplexExpRotaryEmbedding) -> None:
    x, positions = torch.randn(3, 2, 12), torch.tensor([5, 0, 4000])
    there = table(positions, x)
    assert torch.equal(there[..., :4], x[..., :4])
    assert torch.equal(there[1], x[1])
    assert_close(table(positions, there, inverse=True), x)


def test_scores_depend_on_distance_only(table: ComplexExpRotaryEmbedding) -> None:
    q, k = torch.randn(1, 1, 8), torch.randn(1, 1, 8)
    scores = [
        (table(torch.tensor([n + 9]), q) * table(torch.tensor([n]), k)).sum()
        for n in (0, 100, 3000)
    ]
    assert_close(torch.stack(scores), scores[0].expand(3), scale=100)


def test_the_table_is_no_part_of_a_checkpoint(table: ComplexExpRotaryEmbedding) -> None:
    assert not table.state_dict()
