"""The projections around multi-head latent attention (DeepSeek-V2, section 2.1; V3, section 2.1.1).

Shapes: T tokens, H hidden size, h heads of this rank, L latent width, N and R widths of a head's
plain and rotated part, V width of a head's value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from ascend_ops_core.ops.linear import to_nz
from ascend_ops_core.ops.norm import rms_norm
from ascend_ops_core.ops.rotary import apply_rotary
from ascend_ops_core.quantized_weights.weight import project as product
from torch import nn

from ascend_attention.ops.mla_prolog import PrologueWeights

FUSED = "fused_"
"""What the names of buffers with weights of the fused operator begin with."""


@dataclass(frozen=True)
class MLAShape:
    """Sizes of a layer's attention.

    Attributes:
        hidden_size: ``H``.
        num_heads: ``h``, query heads on this rank.
        q_lora_rank: width of the query latent; None where queries are projected at once.
        kv_lora_rank: ``L``.
        nope_dim: ``N``.
        rope_dim: ``R``.
        value_dim: ``V``.
        scale: factor on dot products, which YaRN may have changed.
        norm_eps: epsilon of the latents' norms.
        interleaved: rotated pairs are channels ``(0, 1), (2, 3), ...``.
    """

    hidden_size: int
    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    scale: float
    norm_eps: float
    interleaved: bool = True

    @property
    def head_dim(self) -> int:
        """Width of a query head."""
        return self.nope_dim + self.rope_dim

    @property
    def row_width(self) -> int:
        """Values that are cached of a token."""
        return self.kv_lora_rank + self.rope_dim


@dataclass(frozen=True)
class MLAQuery:
    """What the projections in front of attention give.

    Attributes:
        q_input: ``[T, q_lora_rank]`` normed query latent, from which an indexer makes its query
            too; the layer's input where there is none.
        q_nope: ``[T, h, N]``.
        q_rope: ``[T, h, R]`` rotated.
        kv: ``[T, L + R]``, latent and shared key before norm and rotation.
    """

    q_input: torch.Tensor
    q_nope: torch.Tensor
    q_rope: torch.Tensor
    kv: torch.Tensor


class AscendMultiHeadLatentAttention(nn.Module):
    """Weights of one layer's MLA, and the products with them; attention itself is the caller's.

    Args:
        shape: sizes.
        dtype: dtype of the projections; norms are float32.

    Attributes:
        qkv_a: ``[q_lora_rank + L + R, H]``, rows of the query latent (if there is one) before the
            latent's and the shared key's.
        q_a_norm: ``[q_lora_rank]`` float32, or None.
        q_b: ``[h * (N + R), q_lora_rank]``; of ``H`` columns without a query latent.
        kv_a_norm: ``[L]`` float32.
        kv_b: ``[h, N + V, L]``, a head's rows for keys before those for values.
        o: ``[H, h * V]``.
        split: interleaved pairs lie half-split in rotated queries, as they do in the cache then.
        fused: the weights of the operator that does all that is in front of attention, or None;
            ``qkv_a`` and ``q_b`` are gone then, and ``kv_b`` is ``[h, V, L]``.

    ``qkv_a``, ``q_b`` and ``o`` may be replaced by quantised weights.
    """

    def __init__(self, shape: MLAShape, dtype: torch.dtype) -> None:
        super().__init__()
        self.shape = shape
        rank = shape.q_lora_rank
        heads, hidden = shape.num_heads, shape.hidden_size
        self.qkv_a: Any = _empty((rank or 0) + shape.row_width, hidden, dtype=dtype)
        self.q_a_norm = None if rank is None else _empty(rank)
        self.q_b: Any = _empty(
            heads * shape.head_dim, hidden if rank is None else rank, dtype=dtype
        )
        self.kv_a_norm = _empty(shape.kv_lora_rank)
        self.kv_b = _empty(heads, shape.nope_dim + shape.value_dim, shape.kv_lora_rank, dtype=dtype)
        self.o: Any = _empty(hidden, heads * shape.value_dim, dtype=dtype)
        self.split = False
        self.fused: PrologueWeights | None = None

    def project(self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> MLAQuery:
        """Queries and what is to be cached.

        Args:
            hidden: ``[T, H]`` normed input of the layer; ``T`` may be 0.
            cos: ``[T, R / 2]`` float32.
            sin: the same shape and dtype.
        """
        shape = self.shape
        down = product(hidden, self.qkv_a)
        kv = down[:, -shape.row_width :]
        q_input = hidden
        if self.q_a_norm is not None:
            latent = down[:, : -shape.row_width].contiguous()
            q_input = rms_norm(latent, self.q_a_norm, shape.norm_eps)
        query = product(q_input, self.q_b).unflatten(-1, (shape.num_heads, shape.head_dim))
        query = apply_rotary(query, cos, sin, interleaved=shape.interleaved, at_end=True)
        q_nope, q_rope = query.split([shape.nope_dim, shape.rope_dim], dim=-1)
        if self.split and shape.interleaved:
            q_rope = q_rope.unflatten(-1, (-1, 2)).mT.flatten(-2)
        return MLAQuery(q_input, q_nope, q_rope, kv)

    def fuse(self) -> None:
        """Bring loaded weights into the form of :func:`ascend_attention.ops.mla_prolog.mla_prolog`.

        They must be plain, with a latent of queries and interleaved pairs. What the operator does
        not read is given back, so that weights are held once.
        """
        shape, rank = self.shape, self.shape.q_lora_rank
        assert rank is not None
        assert self.q_a_norm is not None
        down, kv_b = self.qkv_a.data, self.kv_b.data
        made = (
            to_nz(down[:rank].T.contiguous()),
            to_nz(self.q_b.data.T.contiguous()),
            kv_b[:, : shape.nope_dim].contiguous(),
            to_nz(down[rank:].T.contiguous()),
            self.q_a_norm.to(down.dtype),
            self.kv_a_norm.to(down.dtype),
        )
        self.fused = PrologueWeights(*made)
        # No parameters: vLLM asks for every one of those whether the checkpoint has it.
        for name, weight in self.fused._asdict().items():
            self.register_buffer(f"{FUSED}{name}", weight, persistent=False)
        del self.qkv_a, self.q_b
        values = kv_b[:, shape.nope_dim :].contiguous()
        self.kv_b = nn.Parameter(values, requires_grad=False)

    def absorb(self, q_nope: torch.Tensor) -> torch.Tensor:
        """``[T, h, L]``: queries ``[T, h, N]`` in the space of latents."""
        keys = self.kv_b[:, : self.shape.nope_dim]
        return torch.bmm(q_nope.transpose(0, 1), keys).transpose(0, 1)

    def values(self, attended: torch.Tensor) -> torch.Tensor:
        """``[T, h, V]`` from attended latents ``[T, h, L]``."""
        up = self.kv_b[:, -self.shape.value_dim :].transpose(1, 2)
        return torch.bmm(attended.transpose(0, 1), up).transpose(0, 1)

    def output(self, values: torch.Tensor) -> torch.Tensor:
        """``[T, H]`` from values ``[T, h, V]``: this rank's part of the sum over heads."""
        return product(values.flatten(1), self.o)


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)
