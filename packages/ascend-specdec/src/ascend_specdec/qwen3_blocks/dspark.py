"""DSpark: DFlash's parallel pass, then one small step for every place."""

from __future__ import annotations

import torch
from ascend_ops_core.layers.draft_heads import DSparkConfidenceHead, DSparkMarkovHead
from vllm.config import VllmConfig

from ascend_specdec.qwen3_blocks.model import AscendDFlashQwen3ForCausalLM
from ascend_specdec.vllm.draft_choice import DraftChoice

__all__ = ["AscendQwen3DSparkForCausalLM"]


class AscendQwen3DSparkForCausalLM(AscendDFlashQwen3ForCausalLM):
    """See the module.

    Attributes:
        confidence_head: None where the checkpoint has none.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        spec = self.spec
        self.markov_head = DSparkMarkovHead(
            spec.vocab_size,
            spec.draft_vocab_size,
            spec.markov_rank,
            vllm_config.model_config.dtype,
            spec.logit_scale,
        )
        self.confidence_head: DSparkConfidenceHead | None = None

    def draft(
        self, hidden: torch.Tensor, anchors: torch.Tensor, choice: DraftChoice
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See the base class; each place learns which token stands in front of it."""
        places = hidden if self.spec.from_anchor else hidden[:, 1:]
        base = self.compute_logits(places.flatten(0, 1)).unflatten(0, places.shape[:2])
        token, tokens, laws = anchors, [], []
        for place in range(places.shape[1]):
            chosen, law = choice(self.markov_head(base[:, place], token))
            token = self.in_target(chosen)
            tokens.append(token)
            laws.append(law)
        drafts = torch.stack(tokens, dim=1)
        return drafts, None if choice.greedy else self.law_in_target(torch.stack(laws, dim=1))

    def confidence(
        self, hidden: torch.Tensor, anchors: torch.Tensor, drafts: torch.Tensor
    ) -> torch.Tensor | None:
        """Probabilities ``[R, K]`` float32 that drafts stand; None without a confidence head.

        Args:
            hidden: ``[R, Q, H]`` of the block's rows.
            anchors: ``[R]``.
            drafts: ``[R, K]``, of :meth:`draft`.
        """
        if self.confidence_head is None:
            return None
        places = hidden if self.spec.from_anchor else hidden[:, 1:]
        read = torch.cat([anchors.unsqueeze(1).to(drafts.dtype), drafts[:, :-1]], dim=1)
        markov = self.markov_head.embed(read.flatten())
        scores: torch.Tensor = self.confidence_head(places.flatten(0, 1), markov)
        return scores.view(drafts.shape)
