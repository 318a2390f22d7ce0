"""DFlash2: DFlash with a convolution in its layers and a choice among candidates."""

from __future__ import annotations

import torch
from ascend_ops_core.layers.block_drafts import places_of
from vllm.config import VllmConfig

from ascend_specdec.qwen3_blocks.model import AscendDFlashQwen3ForCausalLM
from ascend_specdec.qwen3_blocks.selector import CandidateSelector
from ascend_specdec.vllm.draft_choice import DraftChoice

__all__ = ["DFlash2Qwen3ForCausalLM"]


class DFlash2Qwen3ForCausalLM(AscendDFlashQwen3ForCausalLM):
    """See the module."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        spec = self.spec
        assert spec.selector is not None
        dtype = vllm_config.model_config.dtype
        self.candidate_selector = CandidateSelector(
            spec.selector, spec.hidden_size, spec.vocab_size, dtype
        )

    def draft(
        self, hidden: torch.Tensor, anchors: torch.Tensor, choice: DraftChoice
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See the base class; places are chosen one behind the other."""
        places = places_of(hidden, self.spec.from_anchor)
        logits = self.compute_logits(places.flatten(0, 1)).unflatten(0, places.shape[:2])
        return self.candidate_selector.choose(places, logits, anchors, choice)
