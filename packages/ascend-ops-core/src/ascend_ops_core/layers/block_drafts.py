"""What block drafts of every package share: their shape, and DSpark's walk through a block.

A block draft (DFlash, DSpark) reads hidden states of the target as its context and fills a block of
places in one pass. ``R`` requests have blocks of ``Q`` rows, of which ``K`` are places for drafts.
``ascend_specdec.vllm.block_proposer`` serves whatever has the methods of :class:`BlockDraft`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from ascend_ops_core.layers.draft_heads import DSparkConfidenceHead, DSparkMarkovHead

__all__ = [
    "TRAINED_BLOCK",
    "BlockDraft",
    "BlockShape",
    "Choice",
    "confidences",
    "markov_drafts",
    "places_of",
]

TRAINED_BLOCK = "trained_dspark_block_size"
"""Where a config that vLLM has read keeps its ``dspark_block_size``.

``ascend_specdec.vllm.block_hooks`` moves it there, since vLLM refuses fewer drafts than that.
"""


@dataclass(frozen=True)
class BlockShape:
    """What a block draft's config says to those that serve it.

    Attributes:
        hidden_size: ``H``.
        vocab_size: ``V``, of the target.
        draft_vocab_size: ``D``, of the draft's head.
        target_layers: layers of the target, from 0, behind which hidden states are taken.
        target_hidden_size: their width.
        mask_token: id that stands in the places to be filled.
        from_anchor: the anchor's own place predicts the first draft (DSpark); otherwise the first
            mask token does, and the anchor's place predicts nothing.
    """

    hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    target_layers: tuple[int, ...]
    target_hidden_size: int
    mask_token: int
    from_anchor: bool

    @property
    def least_drafts(self) -> int:
        """Drafts that a block has at least; where fewer are wanted, they are its first."""
        return 1

    def queries(self, drafts: int) -> int:
        """Rows of the block that so many drafts are taken from."""
        return self.rows_read(max(drafts, self.least_drafts))

    def rows_read(self, drafts: int) -> int:
        """Rows of a block, from its first, that so many drafts are made of."""
        return drafts if self.from_anchor else drafts + 1


class Choice(Protocol):
    """How drafts are chosen (``ascend_specdec.vllm.draft_choice``)."""

    greedy: bool

    def __call__(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens ``[R]`` int64 and their law ``[R, D]`` float32 of logits ``[R, D]``."""


class BlockDraft(Protocol):
    """What is asked of a block draft.

    Attributes:
        spec: its shape.
    """

    @property
    def spec(self) -> BlockShape:
        """Its shape."""

    def combine_hidden_states(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Context ``[T, H]`` of the target's hidden states ``[T, m * target_hidden_size]``."""

    def insert_context(
        self, states: torch.Tensor, positions: torch.Tensor, slots: Mapping[str, torch.Tensor]
    ) -> None:
        """Write the rows of context ``states [T, H]`` at ``positions [T]`` into all caches.

        ``slots`` are ``[T]`` of each cache by its name; negative for rows that are not written.
        """

    def causal_layers(self) -> dict[str, bool]:
        """Whether a query does not see those behind it, for each cache by its name."""

    def __call__(
        self, input_ids: torch.Tensor, positions: torch.Tensor, block: int
    ) -> torch.Tensor:
        """Hidden states ``[R * block, H]`` of whole blocks."""

    def draft(
        self, hidden: torch.Tensor, anchors: torch.Tensor, choice: Choice
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Tokens ``[R, K]`` of the first ``K`` places of blocks, ``hidden [R, Q, H]``.

        In front of them stand ``anchors [R]``.

        Also their laws ``[R, K, V]`` float32, where they are drawn.
        """


def places_of(hidden: torch.Tensor, from_anchor: bool) -> torch.Tensor:
    """The rows ``[R, K, H]`` of ``hidden [R, Q, H]`` that predict."""
    return hidden if from_anchor else hidden[:, 1:]


def markov_drafts(
    base: torch.Tensor,
    anchors: torch.Tensor,
    head: DSparkMarkovHead,
    choice: Choice,
    to_target: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Choose a block's drafts one behind the other, each corrected by the token in front of it.

    Args:
        base: ``[R, K, D]``, logits of all places.
        anchors: ``[R]`` tokens in front of the first place.
        head: corrects.
        choice: how to choose.
        to_target: the target's tokens of the draft's; None where they are the same.

    Returns:
        The target's tokens ``[R, K]``, and their laws ``[R, K, D]`` float32 over the draft's
        vocabulary where they are drawn.
    """
    token, tokens, laws = anchors, [], []
    for place in range(base.shape[1]):
        chosen, law = choice(head(base[:, place], token))
        token = chosen if to_target is None else to_target(chosen)
        tokens.append(token)
        laws.append(law)
    return torch.stack(tokens, dim=1), None if choice.greedy else torch.stack(laws, dim=1)


def confidences(
    places: torch.Tensor,
    anchors: torch.Tensor,
    drafts: torch.Tensor,
    markov_head: DSparkMarkovHead,
    head: DSparkConfidenceHead,
) -> torch.Tensor:
    """Probabilities ``[R, K]`` float32 that drafts stand.

    Args:
        places: ``[R, K, H]``, see :func:`places_of`.
        anchors: ``[R]``.
        drafts: ``[R, K]``, the target's tokens.
        markov_head: whose embedding of the token in front a head may read.
        head: the confidence head.
    """
    read = torch.cat([anchors.unsqueeze(1).to(drafts.dtype), drafts[:, :-1]], dim=1)
    scores: torch.Tensor = head(places.flatten(0, 1), markov_head.embed(read.flatten()))
    return scores.view(drafts.shape)
