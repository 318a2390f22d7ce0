"""The state of a layer of linear attention as data: what is kept of a request, and how large it is.

A request has one state however long its context is, and one more for every draft token of a step,
so that rejected drafts cost nothing: the next step starts from the state behind the last accepted
token. With prefix caching a state is also kept at the end of every block of tokens.

vLLM's specs, the tensors' shapes and any memory estimate come from this one description.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from ascend_ops_core.errors import InvalidInputError

__all__ = ["StateKind", "gdn_state", "kda_state"]


@dataclass(frozen=True)
class StateKind:
    """What one layer keeps of a request.

    Attributes:
        conv_width: tokens that the short convolution sees, the current one included.
        channels: of the convolution: queries, keys and values of this rank.
        heads: value heads of this rank.
        value_dim: channels of a head's value.
        key_dim: channels of a head's key.
        dtype: of the convolution's inputs.
        drafts: most draft tokens of a step.
        state_dtype: of the recurrent state.
    """

    conv_width: int
    channels: int
    heads: int
    value_dim: int
    key_dim: int
    dtype: torch.dtype
    drafts: int = 0
    state_dtype: torch.dtype = torch.float32

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int, int]]:
        """Shapes of a slot: the convolution's last inputs, and the recurrent state.

        The former has a row for each draft token as well, in one slot of a request; the latter is
        kept in a slot for each.
        """
        rows = self.conv_width - 1 + self.drafts
        return (rows, self.channels), (self.heads, self.value_dim, self.key_dim)

    @property
    def dtypes(self) -> tuple[torch.dtype, torch.dtype]:
        """Their dtypes."""
        return self.dtype, self.state_dtype

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot."""
        sizes = zip(self.shapes, self.dtypes, strict=True)
        return sum(prod(shape) * dtype.itemsize for shape, dtype in sizes)

    @property
    def slots(self) -> int:
        """Slots that a request has at a time, besides those of cached prefixes."""
        return 1 + self.drafts


def kda_state(
    *,
    num_heads: int,
    head_dim: int,
    conv_width: int,
    dtype: torch.dtype,
    ranks: int = 1,
    drafts: int = 0,
) -> StateKind:
    """The state of a layer of Kimi delta attention.

    Args:
        num_heads: of all ranks.
        head_dim: channels of a head's query, key and value.
        conv_width: tokens that the convolution sees.
        dtype: the model's.
        ranks: tensor-parallel ranks.
        drafts: most draft tokens of a step.

    Raises:
        InvalidInputError: the ranks do not divide the heads.
    """
    if num_heads % ranks:
        raise InvalidInputError(
            f"{ranks} tensor-parallel ranks",
            f"they share {num_heads} heads of delta attention evenly",
            "Use a number of ranks that divides the heads.",
        )
    heads = num_heads // ranks
    return StateKind(conv_width, 3 * heads * head_dim, heads, head_dim, head_dim, dtype, drafts)


def gdn_state(
    *,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
    conv_width: int,
    dtype: torch.dtype,
    ranks: int = 1,
    drafts: int = 0,
) -> StateKind:
    """The state of a layer of Gated DeltaNet in vLLM's own models, all of it in the model's dtype.

    Args:
        key_heads: of all ranks.
        value_heads: of all ranks, as many for each key head.
        key_dim: channels of a head's query and key.
        value_dim: channels of a head's value.
        conv_width: tokens that the convolution sees.
        dtype: the model's; vLLM's ``mamba_ssm_cache_dtype`` sets another one for the recurrent
            state.
        ranks: tensor-parallel ranks.
        drafts: most draft tokens of a step.

    Raises:
        InvalidInputError: the ranks do not divide the key heads.
    """
    if key_heads % ranks or value_heads % key_heads:
        raise InvalidInputError(
            f"{ranks} tensor-parallel ranks",
            f"they share {key_heads} key heads of Gated DeltaNet evenly, and these its "
            f"{value_heads} value heads",
            "Use a number of ranks that divides the key heads.",
        )
    keys, values = key_heads // ranks * key_dim, value_heads // ranks * value_dim
    heads = value_heads // ranks
    channels = 2 * keys + values
    return StateKind(conv_width, channels, heads, value_dim, key_dim, dtype, drafts, dtype)
