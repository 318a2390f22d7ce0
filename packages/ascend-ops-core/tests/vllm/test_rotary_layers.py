"""vLLM's rotary embeddings against ours, which an NPU runs in their place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_ops_core import InvalidInputError
from ascend_ops_core.testing import assert_close

pytestmark = pytest.mark.engine


@pytest.fixture(autouse=True)
def _config() -> object:
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()):
        yield


def layer(name: str, *arguments: Any, **options: Any) -> Any:
    from ascend_ops_core.vllm import rotary

    return getattr(rotary, name)(*arguments, **options)


CASES = (
    ("AscendRotaryEmbedding", (16, 16, 64, 1e4, True, torch.float32), {}),
    ("AscendRotaryEmbedding", (16, 8, 64, 1e4, True, torch.float32), {}),
    ("AscendRotaryEmbedding", (16, 8, 64, 1e4, False, torch.float32), {}),
    (
        "AscendLlama3RotaryEmbedding",
        (16, 16, 64, 1e4, True, torch.float32, 8.0, 1.0, 4.0, 16),
        {},
    ),
    ("AscendYaRNRotaryEmbedding", (16, 16, 64, 1e4, True, 4.0, torch.float32), {}),
    (
        "AscendDeepseekScalingRotaryEmbedding",
        (16, 16, 64, 1e4, False, 4.0, torch.float32),
        {"mscale": 1.0, "mscale_all_dim": 0.5},
    ),
    ("AscendMRotaryEmbedding", (16, 16, 64, 1e4, True, torch.float32, [2, 3, 3]), {}),
)


@pytest.mark.parametrize(("name", "arguments", "options"), CASES)
def test_equals_vllm(name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    one = layer(name, *arguments, **options)
    positions = torch.tensor([0, 3, 63, 7, 7])
    shape = (5, 3, 16) if "Deepseek" in name else (5, 48)
    query, key = torch.randn(shape), torch.randn(shape)
    expected = one.forward_native(positions, query.clone(), key.clone())
    got = one.forward_oot(positions, query, key)
    assert_close(got[0], expected[0])
    assert_close(got[1], expected[1])


@pytest.mark.parametrize("interleaved", [False, True])
def test_positions_of_images_equal_vllm(interleaved: bool) -> None:
    one = layer(
        "AscendMRotaryEmbedding",
        *(16, 16, 64, 1e4, True, torch.float32, [4, 2, 2]),
        mrope_interleaved=interleaved,
    )
    positions = torch.randint(0, 64, (3, 5))
    query, key = torch.randn(5, 48), torch.randn(5, 32)
    expected = one.forward_native(positions, query.clone(), key.clone())
    got = one.forward_oot(positions, query, key)
    assert_close(got[0], expected[0])
    assert_close(got[1], expected[1])


def test_a_query_alone_and_a_position_outside() -> None:
    one = layer("AscendRotaryEmbedding", 16, 16, 64, 1e4, True, torch.float32)
    query = torch.randn(2, 48)
    got, none = one.forward_oot(torch.tensor([1, 2]), query)
    assert none is None
    assert_close(got, one.forward_native(torch.tensor([1, 2]), query, None)[0])
    with pytest.raises(InvalidInputError, match=r"position 64.*0 to 63"):
        one.forward_oot(torch.tensor([1, 64]), query)


@pytest.mark.parametrize("table", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("shape", [(5, 3, 16), (2, 5, 3, 16)])
def test_given_tables_equal_vllm(shape: tuple[int, ...], neox: bool, table: torch.dtype) -> None:
    one = layer("AscendApplyRotaryEmb", is_neox_style=neox)
    x, angle = torch.randn(shape), torch.randn(5, 8)
    cos, sin = angle.cos().to(table), angle.sin().to(table)
    assert_close(one.forward_oot(x, cos, sin), one.forward_native(x, cos, sin))
