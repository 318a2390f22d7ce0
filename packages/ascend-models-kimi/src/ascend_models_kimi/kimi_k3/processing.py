"""vLLM's processing of Kimi-K3's prompts, with an image processor that needs no remote code.

Upstream symbol: ``KimiK3ProcessingInfo`` of ``vllm.models.kimi_k3.common.mm_preprocess`` (0.27.1),
which runs the code that comes with the checkpoint, and so wants ``--trust-remote-code``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.models.kimi_k3.common.mm_preprocess import KimiK3ProcessingInfo
from vllm.multimodal.processing import BaseProcessingInfo, InputProcessingContext
from vllm.transformers_utils.processors.kimi_k3 import KimiK3Processor
from vllm.transformers_utils.repo_utils import get_hf_file_to_dict

from ascend_models_kimi.kimi_k3.image_processor import FILE, AscendKimiK3ImageProcessor

PAD = "<|media_pad|>"
"""The token in whose places the embeddings of an image stand."""


class AscendKimiK3ProcessingInfo(KimiK3ProcessingInfo):
    """vLLM's description of images with our image processor."""

    def __init__(self, ctx: InputProcessingContext) -> None:
        # Past vLLM's own, which would import what the checkpoint brings.
        BaseProcessingInfo.__init__(self, ctx)
        self.hf_config = self.get_hf_config()
        tokenizer = self.get_tokenizer()
        found = tokenizer.convert_tokens_to_ids(PAD)
        if isinstance(found, int) and found != getattr(tokenizer, "unk_token_id", None):
            # The tokenizer decides, as in vLLM's own.
            self.hf_config.media_placeholder_token_id = found
        self.media_token_id = self.hf_config.media_placeholder_token_id
        self.media_token = tokenizer.decode(self.media_token_id)
        model = ctx.model_config
        settings = get_hf_file_to_dict(FILE, model.model, model.revision)
        self.image_processor = AscendKimiK3ImageProcessor.of_checkpoint(model.model, settings)
        self.hf_processor = KimiK3Processor(self.image_processor, tokenizer)
        self.media_tokens_calculator = self._tokens

    def _tokens(self, media: Mapping[str, Any]) -> int:
        """Tokens of an image in a prompt."""
        return self.image_processor.settings.tokens(*media["image"].size)
