"""vLLM's processors of MiniMax-M3, with the one repair that they need.

Upstream symbol: ``MiniMaxM3VLVideoProcessor`` of ``vllm.transformers_utils.processors.minimax_m3``
(0.27.1), whose ``_preprocess`` wants ``do_convert_rgb``; transformers 5.24 converts frames itself
and passes it no more, so that every video is a TypeError.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import BatchFeature
from vllm.models.minimax_m3.common.mm_preprocess import MiniMaxM3VLProcessingInfo
from vllm.transformers_utils.processors.minimax_m3 import (
    MiniMaxM3VLVideoProcessor,
    MiniMaxVLProcessor,
)


class AscendMiniMaxM3VLVideoProcessor(MiniMaxM3VLVideoProcessor):
    """vLLM's video processor under transformers 5.24."""

    def _preprocess(
        self, videos: list[torch.Tensor], do_convert_rgb: bool = True, **settings: Any
    ) -> BatchFeature:
        return super()._preprocess(videos, do_convert_rgb, **settings)


class AscendMiniMaxVLProcessor(MiniMaxVLProcessor):
    """vLLM's processor with that video processor."""

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, **settings: Any
    ) -> AscendMiniMaxVLProcessor:
        """The processor of a checkpoint; see transformers' ``ProcessorMixin``."""
        made: AscendMiniMaxVLProcessor = super().from_pretrained(
            pretrained_model_name_or_path, **settings
        )
        made.video_processor = AscendMiniMaxM3VLVideoProcessor.from_pretrained(
            pretrained_model_name_or_path, **settings
        )
        return made


class AscendMiniMaxM3VLProcessingInfo(MiniMaxM3VLProcessingInfo):
    """vLLM's description of images and videos with that processor."""

    def get_hf_processor(self, **settings: object) -> MiniMaxVLProcessor:
        """The processor of the engine's checkpoint."""
        return self.ctx.get_hf_processor(AscendMiniMaxVLProcessor, **settings)
