"""MiniMax-M3's vision configuration, read from the published keys or from transformers' keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ascend_ops_core.checkpoint.config_reader import FIX_CONFIG, ConfigReader
from ascend_ops_core.errors import InvalidInputError


@dataclass(frozen=True)
class VisionSpec:
    """Everything that the vision code reads from a config, validated.

    Attributes follow the published names. ``segment_frames`` is the largest number of temporal
    patches that attend to each other (``vision_segment_max_frames``), None for all of a video.
    ``projector_width`` is the inner width of both networks behind the tower, which have biases
    where ``projector_bias`` and ``merge_bias`` say so.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_channels: int
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int
    layer_norm_eps: float
    rope_theta: float
    segment_frames: int | None
    text_hidden_size: int
    projector_width: int
    projector_bias: bool
    merge_bias: bool

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def axis_dim(self) -> int:
        """Channels of a head that rotate with each of time, height and width."""
        return 2 * ((self.head_dim // 3) // 2)

    @property
    def patch_values(self) -> int:
        """Values of a patch."""
        return self.num_channels * self.temporal_patch_size * self.patch_size**2

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """Read a Hugging Face config object or a mapping of the whole model.

        Raises:
            InvalidInputError: a missing key, a value that is not served, or sizes that do not fit
                together.
        """
        outer = ConfigReader(config, "MiniMax-M3")
        given, text = outer.get("vision_config"), outer.get("text_config")
        if given is None or text is None:
            raise InvalidInputError(
                "config without vision_config or text_config",
                "a model with images and video has both",
                "Serve it as MiniMaxM3SparseForCausalLM, or correct config.json.",
            )
        read = ConfigReader(given, "MiniMax-M3's vision tower")
        compression = read.get("img_token_compression_config", {})
        if not isinstance(compression, Mapping):
            raise InvalidInputError(
                f"img_token_compression_config={compression!r}",
                "it is an object of named values",
                FIX_CONFIG,
            )
        method = compression.get("image_token_compression_method", "patch_merge")
        for key, value, served in (
            ("image_token_compression_method", method, "patch_merge"),
            ("hidden_act", read.get("hidden_act", "gelu"), "gelu"),
            ("projector_hidden_act", read.get("projector_hidden_act", "gelu"), "gelu"),
            ("rope_mode", read.get("rope_mode", "3d"), "3d"),
        ):
            if value != served:
                raise InvalidInputError(
                    f"{key}={value!r}",
                    f"images are served with {key}={served!r} alone",
                    "Serve another checkpoint.",
                )
        # transformers has the sizes of patches beside the others.
        sizes = ConfigReader(
            {
                key: compression.get(key, read.get(key))
                for key in ("spatial_merge_size", "temporal_patch_size")
            },
            read.model,
        )
        width = ConfigReader(text, "MiniMax-M3").integer("hidden_size", least=1)
        spec = cls(
            hidden_size=read.integer("hidden_size", least=1),
            intermediate_size=read.integer("intermediate_size", least=1),
            num_hidden_layers=read.integer("num_hidden_layers", least=1),
            num_attention_heads=read.integer("num_attention_heads", least=1),
            num_channels=read.integer("num_channels", 3, least=1),
            patch_size=read.integer("patch_size", least=1),
            temporal_patch_size=sizes.integer("temporal_patch_size", 2, least=1),
            spatial_merge_size=sizes.integer("spatial_merge_size", 2, least=1),
            layer_norm_eps=read.number("layer_norm_eps", 1e-5),
            rope_theta=float(read.rope_parameters()["rope_theta"]),
            segment_frames=read.integer("vision_segment_max_frames", 0) or None,
            text_hidden_size=width,
            projector_width=outer.integer("projector_hidden_size", 0) or width,
            projector_bias=bool(read.get("multimodal_projector_bias", True)),
            merge_bias=bool(read.get("patch_merge_bias", True)),
        )
        if spec.hidden_size % spec.num_attention_heads or spec.axis_dim < 2:
            raise InvalidInputError(
                f"num_attention_heads={spec.num_attention_heads} of the vision tower",
                f"it divides hidden_size={spec.hidden_size} into heads of at least 6 channels",
                FIX_CONFIG,
            )
        return spec
