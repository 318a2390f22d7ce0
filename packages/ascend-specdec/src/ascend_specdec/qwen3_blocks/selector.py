"""DFlash2's choice of drafts: candidates of every place, scored by their neighbours."""

from __future__ import annotations

import torch
from ascend_ops_core.ops.linear import linear
from torch import nn

from ascend_specdec.ops.candidate_selection import selector_edges, selector_walk
from ascend_specdec.qwen3_blocks.config import SelectorSpec
from ascend_specdec.vllm.draft_choice import DraftChoice

__all__ = ["CandidateSelector"]


class CandidateSelector(nn.Module):
    """Looks at the best tokens of each place, and walks along the best edges between them.

    Args:
        spec: ranks and scales.
        hidden_size: ``H``.
        vocab_size: ``V``.
        dtype: of the weights.

    Attributes:
        predecessor_codebook: ``[V, r]``.
        successor_codebook: ``[V, r]``.
        hidden_projection: ``[r, H]``.
    """

    def __init__(
        self, spec: SelectorSpec, hidden_size: int, vocab_size: int, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.spec = spec

        def weight(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(rows, columns, dtype=dtype), requires_grad=False)

        self.predecessor_codebook = weight(vocab_size, spec.rank)
        self.successor_codebook = weight(vocab_size, spec.rank)
        self.hidden_projection = weight(spec.rank, hidden_size)

    def candidates(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens ``[..., k]`` and their scores, float32, of logits ``[..., V]``.

        The scores are scaled and capped behind the choice, which neither changes.
        """
        best, tokens = logits.float().topk(self.spec.candidates, dim=-1)
        scores = best * self.spec.output_scale
        if self.spec.softcap is not None:
            scores = self.spec.softcap * (scores / self.spec.softcap).tanh()
        return tokens, scores

    def edges(
        self,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        scores: torch.Tensor,
        anchors: torch.Tensor,
    ) -> torch.Tensor:
        """Scores ``[B, K, k, k]`` of all edges.

        Args:
            hidden: ``[B, K, H]`` of the places.
            tokens: ``[B, K, k]`` candidates.
            scores: ``[B, K, k]`` float32, their own.
            anchors: ``[B]`` tokens in front of the first place.
        """
        gates = linear(hidden, self.hidden_projection)
        return selector_edges(
            scores, tokens, anchors, self.predecessor_codebook, self.successor_codebook, gates
        )

    def choose(
        self,
        hidden: torch.Tensor,
        logits: torch.Tensor,
        anchors: torch.Tensor,
        choice: DraftChoice,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Drafts ``[B, K]``, and their distributions ``[B, K, V]`` where they are drawn.

        Args:
            hidden: ``[B, K, H]`` of the places.
            logits: ``[B, K, V]``.
            anchors: ``[B]``.
            choice: how to choose.
        """
        tokens, scores = self.candidates(logits)
        edges = self.edges(hidden, tokens, scores, anchors)
        if choice.greedy:
            return selector_walk(edges, tokens), None
        batch, places, width = tokens.shape
        at = torch.zeros(batch, 1, dtype=torch.int64, device=tokens.device)
        drafts, probs = [], []
        for place in range(places):
            row = edges[:, place].gather(1, at.unsqueeze(2).expand(-1, 1, width)).squeeze(1)
            # Scattered, so that the law of the draft is known for every token.
            spread = row.new_full((batch, logits.shape[-1]), float("-inf"))
            spread.scatter_(1, tokens[:, place], row)
            chosen, law = choice(spread)
            at = (tokens[:, place] == chosen.unsqueeze(1)).int().argmax(dim=1, keepdim=True)
            drafts.append(chosen)
            probs.append(law)
        return torch.stack(drafts, dim=1), torch.stack(probs, dim=1)
