"""Kimi-K3 with images on vLLM: the vision tower in front of the text model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from ascend_ops_core.checkpoint.headers import check_headers
from ascend_ops_core.errors import InvalidInputError
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.models.interfaces import (
    HasInnerState,
    IsHybrid,
    MultiModalEmbeddings,
    SupportsEagle3,
    SupportsMultiModal,
)
from vllm.models.kimi_k3.common.mm_preprocess import (
    KimiK3DummyInputsBuilder,
    KimiK3MultiModalProcessor,
)
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.sequence import IntermediateTensors

from ascend_models_kimi.kimi_k3.processing import AscendKimiK3ProcessingInfo
from ascend_models_kimi.kimi_k3.vision.config import VisionSpec
from ascend_models_kimi.kimi_k3.vision.tower import KimiK3VisionModel
from ascend_models_kimi.kimi_k3.vision.weights import text_table, whole_table
from ascend_models_kimi.kimi_linear.model import AscendKimiLinearForCausalLM, Hidden

_TextModel = AscendKimiLinearForCausalLM


@MULTIMODAL_REGISTRY.register_processor(
    KimiK3MultiModalProcessor,
    info=AscendKimiK3ProcessingInfo,
    dummy_inputs=KimiK3DummyInputsBuilder,
)
class AscendKimiK3ForConditionalGeneration(
    nn.Module, SupportsMultiModal, HasInnerState, IsHybrid, SupportsEagle3
):
    """Kimi-K3 as vLLM's ``KimiK3ForConditionalGeneration``.

    Raises:
        InvalidInputError: a config or an engine setting that the model cannot serve, before any
            weight is allocated.
        CheckpointError: from :meth:`load_weights`, listing every problem.
    """

    has_inner_state: ClassVar[bool] = True
    is_hybrid: ClassVar[bool] = True

    get_mamba_state_shape_from_config = _TextModel.get_mamba_state_shape_from_config
    get_mamba_state_dtype_from_config = _TextModel.get_mamba_state_dtype_from_config
    get_mamba_state_copy_func = _TextModel.get_mamba_state_copy_func

    @classmethod
    def get_placeholder_str(cls, modality: str, i: int) -> str | None:
        """The token that stands for an image in a prompt.

        Raises:
            InvalidInputError: another modality.
        """
        if modality != "image":
            raise InvalidInputError(
                f"modality {modality!r}", "the model takes images", "Send images."
            )
        return "<|kimi_image_placeholder|>"

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.config = config
        self._source = vllm_config.model_config.model
        spec = VisionSpec.from_config(config)
        # What vLLM's protocol brings is hidden behind what modules look up.
        marks: Any = self
        with marks._mark_tower_model(vllm_config, {"image"}):
            self.vision_tower = KimiK3VisionModel(spec, vllm_config.model_config.dtype)
        with marks._mark_language_model(vllm_config):
            self.language_model = AscendKimiLinearForCausalLM(vllm_config=vllm_config)

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
        """Embeddings ``[n, H]`` of every image.

        Args:
            kwargs: ``pixel_values`` and ``grid_thws``, as the processor made them.
        """
        pixels, grids = kwargs.get("pixel_values"), kwargs.get("grid_thws")
        if pixels is None:
            return ()
        assert isinstance(pixels, torch.Tensor)
        assert isinstance(grids, torch.Tensor)
        sizes = [(rows, columns) for _, rows, columns in grids.view(-1, 3).tolist()]
        embedded: tuple[torch.Tensor, ...] = self.vision_tower(pixels, sizes)
        return embedded

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Hidden:
        """See :meth:`AscendKimiLinearForCausalLM.forward`."""
        hidden: Hidden = self.language_model(
            input_ids, positions, intermediate_tensors, inputs_embeds
        )
        return hidden

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Logits ``[T, V]``."""
        return self.language_model.compute_logits(hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Fill all parameters from tensors in the published naming."""
        table = text_table(self.language_model.model.forms.table, "language_model")
        # vLLM leaves the tower out where no request may have images.
        if isinstance(self.vision_tower, KimiK3VisionModel):
            table = whole_table(table, self.vision_tower.spec)
        check_headers(table, self._source)
        return table.load(self, weights)
