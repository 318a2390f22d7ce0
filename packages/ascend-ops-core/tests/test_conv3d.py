"""conv3d as a product of patches and in general, against loops over the output."""

from __future__ import annotations

import itertools

import pytest
import torch
from ascend_ops_core import InvalidInputError
from ascend_ops_core.ops.conv3d import conv3d
from ascend_ops_core.testing import assert_close

Three = tuple[int, int, int]


def loops(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Three,
    padding: Three,
    dilation: Three,
    groups: int,
) -> torch.Tensor:
    x, weight = x.double(), weight.double()
    x = torch.nn.functional.pad(x, [p for p in reversed(padding) for _ in range(2)])
    kernel = weight.shape[2:]
    sizes = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(x.shape[2:], kernel, stride, dilation, strict=True)
    ]
    out = torch.zeros(x.shape[0], weight.shape[0], *sizes, dtype=torch.float64)
    per_group, outputs = weight.shape[1], weight.shape[0] // groups
    for o in range(weight.shape[0]):
        g = o // outputs
        channels = x[:, g * per_group : (g + 1) * per_group]
        for t, h, w in itertools.product(*map(range, sizes)):
            spans = [
                slice(i * s, i * s + d * (k - 1) + 1, d)
                for i, s, d, k in zip((t, h, w), stride, dilation, kernel, strict=True)
            ]
            out[:, o, t, h, w] = (channels[:, :, *spans] * weight[o]).sum((1, 2, 3, 4))
        if bias is not None:
            out[:, o] += bias.double()[o]
    return out


@pytest.mark.oracle("ascend_ops_core::conv3d", "loops over every output element in float64")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding", "dilation", "groups"),
    [
        ((2, 3, 2, 6, 8), (2, 3, 4), (2, 3, 4), (0, 0, 0), (1, 1, 1), 1),
        ((1, 3, 5, 7, 9), (2, 3, 4), (2, 3, 4), (0, 0, 0), (1, 1, 1), 1),
        ((1, 2, 3, 5, 5), (1, 2, 2), (1, 2, 2), (0, 0, 0), (5, 1, 1), 1),
        ((1, 2, 3, 5, 5), (2, 2, 2), (2, 2, 2), (0, 0, 0), (1, 2, 1), 1),
        ((1, 2, 4, 4, 4), (2, 2, 2), (2, 2, 2), (1, 0, 1), (1, 1, 1), 1),
        ((1, 4, 3, 5, 4), (2, 2, 2), (2, 2, 2), (0, 0, 0), (1, 1, 1), 2),
        ((2, 2, 3, 4, 4), (2, 2, 2), (1, 2, 1), (1, 1, 0), (1, 1, 2), 1),
    ],
    ids=["patches", "rest", "dilated 1", "dilated", "padded", "groups", "overlapping"],
)
def test_equals_loops(
    shape: tuple[int, ...],
    kernel: Three,
    stride: Three,
    padding: Three,
    dilation: Three,
    groups: int,
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype)
    weight = (torch.randn(6, shape[1] // groups, *kernel) / 4).to(dtype)
    for bias in (None, torch.randn(6).to(dtype)):
        got = conv3d(
            x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups
        )
        assert got.dtype == dtype
        assert_close(got, loops(x, weight, bias, stride, padding, dilation, groups), scale=4)


def test_no_images() -> None:
    out = conv3d(torch.randn(0, 3, 2, 4, 4), torch.randn(5, 3, 2, 2, 2), stride=(2, 2, 2))
    assert out.shape == (0, 5, 1, 2, 2)


@pytest.mark.parametrize(
    ("x", "options", "limit"),
    [
        ((1, 3, 4, 4), {}, r"\[B, C, T, H, W\]"),
        ((1, 4, 2, 4, 4), {}, "C / groups"),
        ((1, 3, 2, 4, 4), {"stride": (2, 2)}, "three sizes"),
        ((1, 3, 2, 4, 4), {"stride": (2, 0, 2)}, "at least 1"),
        ((1, 3, 2, 4, 4), {"padding": (0, -1, 0)}, "at least 0"),
        ((1, 3, 1, 4, 4), {}, "reaches over"),
    ],
    ids=["axes", "channels", "two strides", "stride 0", "padding", "small"],
)
def test_refusals(x: tuple[int, ...], options: dict[str, Three], limit: str) -> None:
    with pytest.raises(InvalidInputError, match=limit):
        conv3d(torch.zeros(x), torch.zeros(5, 3, 2, 2, 2), **options)
