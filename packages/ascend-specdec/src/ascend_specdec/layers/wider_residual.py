"""A decoder layer whose residual stream is wider than its attention and feed-forward block.

The residual has ``r H`` channels where the rest has ``H``. A matrix between the two is applied to
each of ``m`` equal chunks alike. With ``<U>`` for such a matrix, e and h the token's embedding and
the target's stream, and each split taken of all chunks laid out one behind the other::

    w = <Up> fc [norm(e); norm(h)]
    a, rest = split(<Down> w);   w = <Up_a> attention(norm(a)) + rest
    b, rest = split(<Down_2> w); w = <Up_m> mlp(norm(b)) + rest
    out = <Down_3> w

Source: vllm-ascend ``models/llama_eagle3_vwn.py``, whose tensor names these are. There it is named
VWN; neither a vocabulary nor a rotation is part of it.
"""

from __future__ import annotations

import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.norm import rms_norm
from torch import nn

__all__ = ["WiderResidualLayer"]


class _Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self.eps)


class _PerChunk(nn.Linear):
    """One matrix for each of ``chunks`` parts of a row: ``[T, inputs]`` to ``[T, outputs]``."""

    def __init__(self, inputs: int, outputs: int, chunks: int) -> None:
        super().__init__(inputs // chunks, outputs // chunks, bias=False)
        self.chunks = chunks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.unflatten(-1, (self.chunks, -1))).flatten(-2)


class _Entry(nn.Module):
    def __init__(self, width: int, wider: int, chunks: int, eps: float) -> None:
        super().__init__()
        self.input_layernorm = _Norm(width, eps)
        self.hidden_norm = _Norm(width, eps)
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.upward = _PerChunk(width, wider, chunks)

    def forward(self, embeds: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        both = torch.cat([self.input_layernorm(embeds), self.hidden_norm(hidden)], dim=-1)
        return self.upward(self.fc(both))


class WiderResidualLayer(nn.Module):
    """See the module.

    Args:
        width: ``H``.
        wider: channels of the residual stream, ``r H``.
        chunks: ``m``; divides ``width`` and ``wider``.
        eps: of the norms.
        attention: called with ``positions [T]`` and ``hidden_states [T, H]``, returns ``[T, H]``.
        mlp: of ``[T, H]``.

    Raises:
        InvalidInputError: widths that cannot be split so.
    """

    def __init__(
        self,
        width: int,
        wider: int,
        chunks: int,
        eps: float,
        attention: nn.Module,
        mlp: nn.Module,
    ) -> None:
        super().__init__()
        if chunks < 1 or width % chunks or wider % chunks:
            raise InvalidInputError(
                f"vwn_m={chunks}",
                f"it divides the widths {width} and {wider}",
                "Correct vwn_m and vwn_r in the draft's config.json.",
            )
        self.width, self.wider = width, wider
        self.pre_vwn_layer = _Entry(width, wider, chunks, eps)
        self.downward_and_forgot = _PerChunk(wider, width + wider, chunks)
        self.pre_attention_layernorm = _Norm(width, eps)
        self.self_attn = attention
        self.upward_after_attn = _PerChunk(width, wider, chunks)
        self.downward_and_forgot_after_attn = _PerChunk(wider, width + wider, chunks)
        self.post_attention_layernorm = _Norm(width, eps)
        self.mlp = mlp
        self.upward_after_mlp = _PerChunk(width, wider, chunks)
        self.downward = _PerChunk(wider, width, chunks)

    def forward(
        self, positions: torch.Tensor, embeds: torch.Tensor, hidden: torch.Tensor
    ) -> torch.Tensor:
        """Map ``embeds`` and ``hidden``, both ``[T, H]``, to ``[T, H]``."""
        wide = self.pre_vwn_layer(embeds, hidden)
        sizes = [self.width, self.wider]
        x, rest = self.downward_and_forgot(wide).split(sizes, dim=-1)
        x = self.self_attn(
            positions=positions, hidden_states=self.pre_attention_layernorm(x.contiguous())
        )
        wide = self.upward_after_attn(x) + rest
        x, rest = self.downward_and_forgot_after_attn(wide).split(sizes, dim=-1)
        x = self.mlp(self.post_attention_layernorm(x.contiguous()))
        wide = self.upward_after_mlp(x) + rest
        out: torch.Tensor = self.downward(wide)
        return out
