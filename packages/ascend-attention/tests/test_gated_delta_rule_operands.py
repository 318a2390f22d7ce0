"""The kernels of the gated delta rule for prompts, whose products take operands of 16 bits.

Against the definition, token by token in float64 from the same inputs. Besides the tolerance of the
operands' dtype, which holds for every value, all values together are held to the bar of
flash-linear-attention's own tests (``tests/ops/test_gated_delta.py``, for outputs and states): the
error's root mean square is at most 0.005 of that of what is right.
"""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from ascend_attention.ops.gated_delta_rule import reference
from ascend_ops_core.cases import Inputs
from ascend_ops_core.devices import device_family
from ascend_ops_core.registry import find
from ascend_ops_core.testing import assert_close
from ascend_ops_core.testing.interpreter import interpreter

pytestmark = pytest.mark.interpreter

LENGTHS = (0, 1, 15, 16, 17, 63, 64, 65, 130, 1000)
WIDTH, HEIGHT = 128, 32
RATIO = 0.005


def tokens_of(
    new: Inputs, count: int, channels: bool, dtype: torch.dtype, kind: str
) -> list[torch.Tensor]:
    """Of one key head and two value heads, of which the second keeps nearly everything."""
    query, key = (new.randn(count, 1, WIDTH) for _ in "qk")
    if kind == "keys alike":
        key = key[:1] + 0.3 * key
    query, key = ((x / x.norm(dim=-1, keepdim=True)).to(dtype) for x in (query, key))
    decay = new.rand(count, 2, WIDTH if channels else 1) * torch.tensor([2.0, 1e-4])[None, :, None]
    decay = decay * -25 if kind == "steep" else decay * -1
    beta = torch.ones(count, 2) if kind == "beta 1" else new.rand(count, 2)
    value = new.randn(count, 2, HEIGHT, dtype=dtype)
    return [query, key, value, decay if channels else decay.squeeze(-1), beta]


def compared(
    tokens: list[torch.Tensor], lengths: tuple[int, ...], start: torch.Tensor
) -> list[torch.Tensor]:
    """Outputs and states of the kernels, and the same in float64."""
    bounds = torch.tensor(list(accumulate(lengths, initial=0)), dtype=torch.int32)
    slots = torch.arange(1, len(lengths) + 1, dtype=torch.int32)
    rest = bounds, slots, slots > 0, WIDTH**-0.5, False, None
    state, exact = start.clone(), start.double()
    call = find("ascend_attention::chunk_gated_delta_rule").call_of("triton")
    with device_family("A2"), interpreter():
        out = call(*tokens, state, *rest)
    wide = (x.double() for x in tokens)
    right = reference.chunk_gated_delta_rule(*wide, exact, *rest)
    return [out, state, right, exact]


@pytest.mark.parametrize("kind", ["usual", "steep", "beta 1", "keys alike"])
@pytest.mark.parametrize("channels", [False, True], ids=["head", "channels"])
def test_bfloat16_operands(channels: bool, kind: str) -> None:
    """Usual inputs in one ragged batch, others as a prompt; float32 is in the operator's cases."""
    new = Inputs()
    lengths = LENGTHS[: -1 if channels else None] if kind == "usual" else (200,)
    tokens = tokens_of(new, sum(lengths), channels, torch.bfloat16, kind)
    start = new.randn(len(lengths) + 2, 2, HEIGHT, WIDTH)
    out, state, right, exact = compared(tokens, lengths, start)
    assert_close(out, right)
    # States are sums of some values of order one.
    assert_close(state, exact, operands=torch.bfloat16, scale=3)
    for actual, wanted in ((out, right), (state[1:-1], exact[1:-1])):
        error = (actual.double() - wanted).square().mean().sqrt()
        assert error <= RATIO * wanted.square().mean().sqrt()
    for untouched in (0, len(lengths) + 1):
        assert torch.equal(state[untouched], start[untouched])
