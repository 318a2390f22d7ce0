"""Frequencies, plain and YaRN, against transformers; and which channels are rotated."""

from __future__ import annotations

import math

import pytest
import torch
from ascend_ops_core import InvalidInputError
from ascend_ops_core.ops.rotary import YarnScaling, rotary_dim_of, rotary_frequencies
from ascend_ops_core.testing import assert_close
from hypothesis import given, settings
from hypothesis import strategies as st


def transformers_yarn(rotary_dim: int, theta: float, yarn: YarnScaling) -> torch.Tensor:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        head_dim=rotary_dim,
        max_position_embeddings=int(yarn.factor * yarn.original_max_position),
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": theta,
            "factor": yarn.factor,
            "original_max_position_embeddings": yarn.original_max_position,
            "beta_fast": yarn.beta_fast,
            "beta_slow": yarn.beta_slow,
        },
    )
    frequencies, _ = ROPE_INIT_FUNCTIONS["yarn"](config)
    return frequencies


@pytest.mark.parametrize(
    ("rotary_dim", "theta", "yarn"),
    [
        (64, 160000.0, YarnScaling(16.0, 65536)),
        (16, 160000.0, YarnScaling(16.0, 256, 32.0, 1.0)),
        (8, 160000.0, YarnScaling(4.0, 512, 16.0, 1.0)),
        (64, 10000.0, YarnScaling(40.0, 4096)),
        (2, 10000.0, YarnScaling(2.0, 64)),
    ],
    ids=lambda value: str(value) if isinstance(value, int | float) else f"x{value.factor:g}",
)
def test_yarn_equals_transformers(rotary_dim: int, theta: float, yarn: YarnScaling) -> None:
    got = rotary_frequencies(rotary_dim, theta, yarn)
    assert got.dtype == torch.float32
    assert_close(got, transformers_yarn(rotary_dim, theta, yarn))


@settings(max_examples=25, deadline=None)
@given(
    half=st.integers(1, 48),
    theta=st.sampled_from([1e4, 1.6e5, 5e6]),
    factor=st.floats(1, 64),
    context=st.integers(512, 65536),
)
def test_yarn_equals_transformers_anywhere(
    half: int, theta: float, factor: float, context: int
) -> None:
    yarn = YarnScaling(factor, context)
    assert_close(
        rotary_frequencies(2 * half, theta, yarn), transformers_yarn(2 * half, theta, yarn)
    )


def test_yarn_keeps_fast_channels_and_divides_slow_ones() -> None:
    plain = rotary_frequencies(64, 1.6e5)
    scaled = rotary_frequencies(64, 1.6e5, YarnScaling(16.0, 65536))
    assert torch.equal(scaled[:4], plain[:4])
    assert_close(scaled[-4:], plain[-4:] / 16)
    assert (plain.diff() < 0).all()


@given(half=st.integers(1, 64), theta=st.floats(2, 1e7))
def test_plain_frequencies(half: int, theta: float) -> None:
    expected = torch.tensor([math.exp(-math.log(theta) * i / half) for i in range(half)])
    assert_close(rotary_frequencies(2 * half, theta), expected)


@pytest.mark.parametrize("name", ["factor", "original_max_position", "beta_fast", "beta_slow"])
@pytest.mark.parametrize("value", [0, -1, math.nan])
def test_yarn_figures_are_positive(name: str, value: float) -> None:
    figures = {"factor": 4.0, "original_max_position": 64} | {name: value}
    with pytest.raises(InvalidInputError, match=rf"YaRN {name}={value}.*positive.*rope_scaling"):
        YarnScaling(**figures)


def test_both_spellings_of_a_partial_rotation_agree() -> None:
    assert rotary_dim_of(128, rotary_dim=64) == 64
    assert rotary_dim_of(128, partial_rotary_factor=0.5) == 64
    assert rotary_dim_of(128, rotary_dim=64, partial_rotary_factor=0.5) == 64
    assert rotary_dim_of(512, partial_rotary_factor=64 / 512) == 64
    assert rotary_dim_of(128) == 128


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"rotary_dim": 64, "partial_rotary_factor": 0.25},
            r"rotary_dim=64.*0\.25.*gives 32 of 128",
        ),
        ({"rotary_dim": 130}, r"rotary dimension 130.*head size 128"),
        ({"rotary_dim": 63}, r"rotary dimension 63.*even"),
        ({"rotary_dim": 0}, r"rotary dimension 0.*between 2"),
        ({"rotary_dim": -2}, r"rotary dimension -2"),
        ({"partial_rotary_factor": 1.5}, r"rotary dimension 192.*Correct rotary_dim"),
        ({"partial_rotary_factor": 0.0}, r"rotary dimension 0"),
    ],
    ids=str,
)
def test_impossible_rotations_are_refused(given: dict[str, float], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        rotary_dim_of(128, **given)
