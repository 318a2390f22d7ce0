"""The output projection of a planned engine: its variant, a card's part, and its buffers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from ascend_attention.layers.output_projection import (
    ProjectionPart,
    ProjectionSettings,
    Variant,
    choose_projection,
)
from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_ops_core.errors import InvalidInputError

from ascend_vllm_plugin.planning.models import ModelSpec
from ascend_vllm_plugin.planning.weights import Layout


@dataclass(frozen=True)
class PlannedProjection:
    """What the engine chooses for the same model and layout.

    Attributes:
        variant: the variant.
        part: what of the weights a card holds.
        ranks: cards that exchange rows; 1 for none.
        own_group: they are neither all tensor-parallel nor all data-parallel ones, so that the
            engine opens a communicator for them.
    """

    variant: Variant
    part: ProjectionPart
    ranks: int
    own_group: bool

    def buffer_bytes(self, tokens: int, itemsize: int) -> int:
        """Bytes of the two static buffers of the exchange.

        Args:
            tokens: of the largest graph; 0 for no graphs.
            itemsize: bytes of a value of the model's dtype.
        """
        if self.variant.layout == "plain":
            return 0
        row = self.part.num_latents
        if self.variant.layout == "otp":
            row = self.part.num_groups * self.part.num_channels
        return 2 * tokens * self.ranks * row * itemsize


def planned_projection(
    spec: ModelSpec,
    layout: Layout,
    device: str,
    dtype: torch.dtype,
    asked: str = "auto",
    exchange: int = 1,
) -> PlannedProjection | None:
    """Choose the variant as the engine does; None for a model whose projection has none.

    Args:
        spec: the model.
        layout: how it is spread.
        device: device family, or ``"cpu"``.
        dtype: the model's dtype.
        asked: a variant's name, or ``"auto"``.
        exchange: replicas that share a projection (``o_proj_tensor_parallel_size``).

    Raises:
        InvalidInputError: see :func:`ascend_attention.layers.output_projection.choose_projection`,
            or a variant of a projection that has none.
    """
    if not isinstance(spec, DeepseekV4Spec):
        if asked != "auto" or exchange != 1:
            raise InvalidInputError(
                f"o_proj={asked!r} with {exchange} replicas",
                "only DeepSeek-V4's output projection has variants",
                "Leave both at their defaults.",
            )
        return None
    settings = ProjectionSettings(
        device,
        spec.num_attention_heads,
        spec.head_dim,
        spec.o_groups,
        spec.o_lora_rank,
        dtype,
        layout.tensor,
        layout.data,
        exchange,
    )
    variant = choose_projection(asked, settings).variant
    ranks, all_of_them = 1, 1
    if variant.layout == "otp":
        ranks, all_of_them = exchange, layout.data
    elif variant.layout == "olora_tp":
        ranks, all_of_them = settings.ranks_per_group, layout.tensor
    return PlannedProjection(variant, ProjectionPart.of(settings), ranks, ranks != all_of_them)
