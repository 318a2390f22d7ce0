"""The projections around Kimi delta attention (Kimi Linear, arXiv 2510.26692, section 3).

Shapes: T tokens, D hidden size, H heads of this rank, d channels of a head, P = H * d.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from ascend_ops_core.ops.linear import linear
from ascend_ops_core.quantized_weights.weight import project as product
from torch import nn

__all__ = ["NORM_EPS", "KDAInputs", "KDAShape", "KimiDeltaProjections"]

NORM_EPS = 1e-5
"""Epsilon of the norm of a head's output, whatever the model's other norms have (vLLM 0.27.1)."""


@dataclass(frozen=True)
class KDAShape:
    """Sizes of a layer on one rank.

    Attributes:
        hidden_size: ``D``.
        num_heads: ``H``.
        head_dim: ``d``.
        conv_width: tokens that the convolution sees.
        full_rank_gate: the output gate is one product, else two of rank ``d``.
        gate_lower_bound: bound of the logarithm of a decay; None for softplus.
    """

    hidden_size: int
    num_heads: int
    head_dim: int
    conv_width: int
    full_rank_gate: bool = False
    gate_lower_bound: float | None = None

    @property
    def width(self) -> int:
        """``P``."""
        return self.num_heads * self.head_dim

    @property
    def parts(self) -> dict[str, int]:
        """Rows of the fused projection, in their order, by the checkpoint's names."""
        gate = {"g": self.width} if self.full_rank_gate else {"g_a": self.head_dim}
        queries = {"q": self.width, "k": self.width, "v": self.width}
        return {**queries, **gate, "f_a": self.head_dim, "b": self.num_heads}


class KDAInputs(NamedTuple):
    """What the projections in front of the convolution give.

    Attributes:
        mixed: ``[T, 3 * P]``, queries, keys and values before the convolution.
        decay: ``[T, P]``, what the decays are made of.
        beta: ``[T, H]``, logits of the update's strength.
        gate: ``[T, P]``, logits of the output gate.
    """

    mixed: torch.Tensor
    decay: torch.Tensor
    beta: torch.Tensor
    gate: torch.Tensor


class KimiDeltaProjections(nn.Module):
    """Weights of one layer, and the products with them; the recurrence is the caller's.

    Args:
        shape: sizes.
        dtype: of the products; the others are float32.

    Attributes:
        in_proj: ``[rows, D]``, see :attr:`KDAShape.parts`.
        f_b: ``[P, d]``, second product of the decays.
        g_b: ``[P, d]``, second product of the output gate, or None.
        conv: ``[conv_width, 3 * P]`` float32, the current token's row last.
        dt_bias: ``[P]`` float32, added to what decays are made of.
        a_log: ``[H]`` float32, logarithms of the decays' rates.
        o_norm: ``[d]`` float32.
        o: ``[D, P]``.
    """

    def __init__(self, shape: KDAShape, dtype: torch.dtype) -> None:
        super().__init__()
        self.shape = shape
        width, rank, hidden = shape.width, shape.head_dim, shape.hidden_size
        self.in_proj: Any = _empty(sum(shape.parts.values()), hidden, dtype=dtype)
        self.f_b = _empty(width, rank, dtype=dtype)
        self.g_b = None if shape.full_rank_gate else _empty(width, rank, dtype=dtype)
        self.conv = _empty(shape.conv_width, 3 * width)
        self.dt_bias = _empty(width)
        self.a_log = _empty(shape.num_heads)
        self.o_norm = _empty(rank)
        self.o: Any = _empty(hidden, width, dtype=dtype)

    def project(self, hidden: torch.Tensor) -> KDAInputs:
        """What the convolution and the recurrence read.

        Args:
            hidden: ``[T, D]`` normed input of the layer; ``T`` may be 0.
        """
        shape = self.shape
        mixed, gate, low, beta = product(hidden, self.in_proj).split(
            [3 * shape.width, *list(shape.parts.values())[3:]], dim=-1
        )
        if self.g_b is not None:
            gate = linear(gate.contiguous(), self.g_b)
        return KDAInputs(mixed, linear(low.contiguous(), self.f_b), beta, gate)

    def output(self, gated: torch.Tensor) -> torch.Tensor:
        """``[T, D]`` from heads ``[T, H, d]``, normed and gated: this rank's part of the sum."""
        return product(gated.flatten(1), self.o)


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)
