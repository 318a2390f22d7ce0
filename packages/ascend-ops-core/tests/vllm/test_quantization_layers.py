"""vLLM's quantisation of activations against ours, which an NPU runs in its place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from ascend_ops_core.testing import assert_close

pytestmark = pytest.mark.engine

# Between two float8_e4m3fn values lie 2^-3 of their magnitude at most.
_STEP = 2**-3


@pytest.fixture(autouse=True)
def _config() -> Iterator[None]:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    with set_current_vllm_config(VllmConfig()):
        yield


def _layer(static: bool, row: int, column: int, **options: object) -> object:
    from ascend_ops_core.vllm.quantization import AscendQuantFP8
    from vllm.model_executor.layers.quantization.utils.quant_utils import GroupShape

    return AscendQuantFP8(static, GroupShape(row, column), **options)


def _compare(layer: object, x: torch.Tensor, scale: torch.Tensor | None = None) -> None:
    values, scales = layer.forward_oot(x, scale)  # type: ignore[attr-defined]
    expected, wanted = layer.forward_native(x, scale)  # type: ignore[attr-defined]
    assert values.dtype == expected.dtype == torch.float8_e4m3fn
    assert values.shape == expected.shape
    assert scales.shape == wanted.shape
    assert scales.stride() == wanted.stride()
    assert_close(scales.float(), wanted.float())
    # vLLM multiplies by the reciprocal, so a quotient at a border may round to the neighbour.
    off = (values.float() - expected.float()).abs()
    assert bool((off <= _STEP * expected.float().abs() + 2**-9).all())
    assert float((off > 0).float().mean()) < 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tokens", [1, 3, 65])
def test_per_token_equals_vllm(tokens: int, dtype: torch.dtype) -> None:
    _compare(_layer(False, 1, -1), (5 * torch.randn(tokens, 200)).to(dtype))


@pytest.mark.parametrize("column_major", [False, True])
@pytest.mark.parametrize("width", [128, 200, 384])
def test_per_block_equals_vllm(width: int, column_major: bool) -> None:
    layer = _layer(False, 1, 128, column_major_scales=column_major, use_ue8m0=False)
    x = 5 * torch.randn(7, width)
    x[3] = 0
    _compare(layer, x)


@pytest.mark.parametrize("size", [(1,), (1, 200)])
def test_given_scales_equal_vllm(size: tuple[int, ...]) -> None:
    shape = (-1, -1) if len(size) == 1 else (-1, 1)
    _compare(_layer(True, *shape), 5 * torch.randn(7, 200), torch.rand(size) + 0.01)


@pytest.mark.parametrize(
    "options", [{"use_ue8m0": True}, {"num_token_padding": 9}], ids=["powers of two", "padding"]
)
def test_other_forms_are_left_to_vllm(options: dict[str, object]) -> None:
    row, column = (1, 128) if "use_ue8m0" in options else (1, -1)
    layer = _layer(False, row, column, **options)
    x = torch.randn(3, 256)
    values, scales = layer.forward_oot(x)  # type: ignore[attr-defined]
    expected, wanted = layer.forward_native(x)  # type: ignore[attr-defined]
    assert torch.equal(values.float(), expected.float())
    assert torch.equal(scales, wanted)


def test_a_token_of_zeros_stays_zero() -> None:
    x = torch.randn(3, 64)
    x[1] = 0
    values, scales = _layer(False, 1, -1).forward_oot(x)  # type: ignore[attr-defined]
    assert not values[1].float().any()
    assert scales[1] == 0
