"""MiniMax-M3 with images and video on vLLM: the vision tower in front of the text model."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import torch
from ascend_fused_moe.quantized_rules import finish_weights
from ascend_ops_core.checkpoint.headers import check_headers
from ascend_ops_core.checkpoint.table import WeightTable
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.huge_pages import move_to_huge_pages
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.models.interfaces import (
    MultiModalEmbeddings,
    SupportsEagle3,
    SupportsMultiModal,
)
from vllm.models.minimax_m3.common.mm_preprocess import (
    MiniMaxM3VLDummyInputsBuilder,
    MiniMaxM3VLMultiModalProcessor,
)
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.sequence import IntermediateTensors

from ascend_models_minimax.minimax_m3.model import AscendMiniMaxM3SparseForCausalLM, Hidden
from ascend_models_minimax.minimax_m3.processing import AscendMiniMaxM3VLProcessingInfo
from ascend_models_minimax.minimax_m3.vision.config import VisionSpec
from ascend_models_minimax.minimax_m3.vision.tower import MiniMaxM3VisionModel
from ascend_models_minimax.minimax_m3.vision.weights import whole_table
from ascend_models_minimax.minimax_m3.weights import main_table

_INPUTS = {
    "pixel_values": ("image", "image_grid_thw"),
    "pixel_values_videos": ("video", "video_grid_thw"),
}


@MULTIMODAL_REGISTRY.register_processor(
    MiniMaxM3VLMultiModalProcessor,
    info=AscendMiniMaxM3VLProcessingInfo,
    dummy_inputs=MiniMaxM3VLDummyInputsBuilder,
)
class AscendMiniMaxM3SparseForConditionalGeneration(nn.Module, SupportsMultiModal, SupportsEagle3):
    """MiniMax-M3 as vLLM's ``MiniMaxM3SparseForConditionalGeneration``.

    Raises:
        InvalidInputError: a config or an engine setting that the model cannot serve, before any
            weight is allocated.
        CheckpointError: from :meth:`load_weights`, listing every problem.
    """

    @classmethod
    def get_placeholder_str(cls, modality: str, i: int) -> str | None:
        """The token that stands for an image or a video in a prompt.

        Raises:
            InvalidInputError: another modality.
        """
        tokens = {
            "image": AscendMiniMaxM3VLProcessingInfo.IMAGE_TOKEN,
            "video": AscendMiniMaxM3VLProcessingInfo.VIDEO_TOKEN,
        }
        if modality not in tokens:
            raise InvalidInputError(
                f"modality {modality!r}", "the model takes images and video", "Send one of these."
            )
        return tokens[modality]

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.config = config
        spec = VisionSpec.from_config(config)
        # What vLLM's protocol brings is hidden behind what modules look up.
        marks: Any = self
        with marks._mark_tower_model(vllm_config, {"image", "video"}):
            self.vision_tower = MiniMaxM3VisionModel(spec, vllm_config.model_config.dtype)
        with marks._mark_language_model(vllm_config):
            self.language_model = AscendMiniMaxM3SparseForCausalLM(vllm_config=vllm_config)

    @property
    def model(self) -> nn.Module:
        """The text model's stack, whose embedding a draft shares."""
        return self.language_model.model

    @property
    def lm_head(self) -> nn.Module:
        """The text model's head, which a draft shares."""
        return self.language_model.lm_head

    def get_language_model(self) -> Any:
        """The text model."""
        return self.language_model

    def embed_multimodal(self, **kwargs: object) -> MultiModalEmbeddings:
        """Embeddings ``[n, H]`` of every image and video, in the order of the arguments.

        Args:
            kwargs: ``pixel_values`` with ``image_grid_thw``, and ``pixel_values_videos`` with
                ``video_grid_thw``, as the processor made them.
        """
        embedded: list[torch.Tensor] = []
        for name, value in kwargs.items():
            if name not in _INPUTS or value is None:
                continue
            grids = kwargs[_INPUTS[name][1]]
            assert isinstance(value, torch.Tensor)
            assert isinstance(grids, torch.Tensor)
            sizes = [(t, h, w) for t, h, w in grids.view(-1, 3).tolist()]
            embedded.extend(self.vision_tower(value, sizes))
        return tuple(embedded)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Hidden:
        """See :meth:`AscendMiniMaxM3SparseForCausalLM.forward`."""
        hidden: Hidden = self.language_model(
            input_ids, positions, intermediate_tensors, inputs_embeds
        )
        return hidden

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Logits ``[T, V]``."""
        return self.language_model.compute_logits(hidden_states)

    def get_expert_mapping(self) -> list[tuple[str, str, int, str]]:
        """See :meth:`AscendMiniMaxM3SparseForCausalLM.get_expert_mapping`."""
        return self.language_model.get_expert_mapping()

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Fill all parameters from tensors in the published naming."""
        checkpoint = self.language_model.checkpoint
        table = checkpoint.forms(self._table).table
        check_headers(table, checkpoint.source)
        loaded = table.load(self, weights)
        finish_weights(self)
        move_to_huge_pages(self.parameters())
        return loaded

    def _table(self, root: str, apart: Container[int]) -> WeightTable:
        text = self.language_model.model
        table = main_table(text.spec, text.shard, root, "language_model.", apart=apart)
        # vLLM leaves the tower out where no request may have images or video.
        if isinstance(self.vision_tower, MiniMaxM3VisionModel):
            return whole_table(table, self.vision_tower.spec)
        return table
