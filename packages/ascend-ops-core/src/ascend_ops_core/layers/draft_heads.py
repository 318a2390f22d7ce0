"""Small heads of block drafters (DSpark) that models of every package share.

They are whole on every rank: a step of the Markov head follows another, so that splitting the
vocabulary would cost a collective for every drafted token.
"""

from __future__ import annotations

import torch
from torch import nn

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.linear import linear
from ascend_ops_core.ops.markov_head import markov_logits

__all__ = ["DSparkConfidenceHead", "DSparkMarkovHead"]


class DSparkMarkovHead(nn.Module):
    """A low-rank correction of the next place's logits by the token in front of it.

    Args:
        vocab_size: ``V``, of the target, whose tokens stand in front.
        draft_vocab_size: ``D``, of the draft's head.
        rank: ``r``.
        dtype: of the weights.
        scale: factor on the correction; the one that the logits have.

    Attributes:
        markov_w1: ``[V, r]``.
        markov_w2: ``[D, r]``.
    """

    def __init__(
        self,
        vocab_size: int,
        draft_vocab_size: int,
        rank: int,
        dtype: torch.dtype,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.scale = scale
        self.markov_w1 = _weight(vocab_size, rank, dtype)
        self.markov_w2 = _weight(draft_vocab_size, rank, dtype)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """``[R, r]`` of tokens ``[R]``."""
        return self.markov_w1[tokens]

    def forward(self, base: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Corrected logits ``[R, D]`` float32 of ``base [R, D]``, behind ``tokens [R]``."""
        return markov_logits(base, tokens, self.markov_w1, self.markov_w2, self.scale)


class DSparkConfidenceHead(nn.Module):
    """How sure a draft is of each place; it never decides what stands.

    Checkpoints of different origin disagree on what it reads and in which precision, so the shape
    of the weight decides: ``[1, H]`` reads hidden states, ``[1, H + r]`` the Markov head's
    embedding of the place's input token behind them.

    Args:
        weight: ``[1, H]`` or ``[1, H + r]``.
        bias: ``[1]``, or None.
        hidden_size: ``H``.
        rank: ``r``.

    Raises:
        InvalidInputError: a weight of another shape.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, hidden_size: int, rank: int
    ) -> None:
        super().__init__()
        allowed = [(1, hidden_size), (1, hidden_size + rank)]
        if tuple(weight.shape) not in allowed:
            raise InvalidInputError(
                f"confidence_head.proj.weight of shape {list(weight.shape)}",
                f"it is {' or '.join(str(list(one)) for one in allowed)}",
                "Take a checkpoint whose heads belong to its hidden size and markov_rank.",
            )
        if bias is not None and tuple(bias.shape) != (1,):
            raise InvalidInputError(
                f"confidence_head.proj.bias of shape {list(bias.shape)}",
                "it is [1]",
                "Take a checkpoint with a scalar bias.",
            )
        self.with_markov = weight.shape[1] != hidden_size
        self.weight = nn.Parameter(weight.float(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.float(), requires_grad=False)

    def forward(self, hidden: torch.Tensor, markov: torch.Tensor) -> torch.Tensor:
        """Probabilities ``[R]`` float32 that places stand.

        Args:
            hidden: ``[R, H]``.
            markov: ``[R, r]``, the Markov head's embedding of the places' input tokens.
        """
        read = torch.cat([hidden, markov], dim=-1) if self.with_markov else hidden
        scores = linear(read.float(), self.weight).squeeze(-1)
        return (scores if self.bias is None else scores + self.bias).sigmoid()


def _weight(rows: int, columns: int, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(rows, columns, dtype=dtype), requires_grad=False)
