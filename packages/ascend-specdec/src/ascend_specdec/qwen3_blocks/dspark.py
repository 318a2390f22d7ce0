"""DSpark: DFlash's parallel pass, then one small step for every place."""

from __future__ import annotations

import torch
from ascend_ops_core.layers.block_drafts import confidences, markov_drafts, places_of
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
        places = places_of(hidden, self.spec.from_anchor)
        base = self.compute_logits(places.flatten(0, 1)).unflatten(0, places.shape[:2])
        drafts, laws = markov_drafts(base, anchors, self.markov_head, choice, self.in_target)
        return drafts, self.law_in_target(laws)

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
        places = places_of(hidden, self.spec.from_anchor)
        return confidences(places, anchors, drafts, self.markov_head, self.confidence_head)
