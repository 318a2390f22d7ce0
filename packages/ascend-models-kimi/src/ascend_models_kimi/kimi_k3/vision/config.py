"""Kimi-K3's vision configuration, read from the published keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from ascend_ops_core.checkpoint.config_reader import FIX_CONFIG, ConfigReader
from ascend_ops_core.errors import InvalidInputError


@dataclass(frozen=True)
class VisionSpec:
    """Everything that the vision code reads from a config, validated.

    Attributes follow the published names without ``vt_``; ``table_rows`` and ``table_columns``
    are ``init_pos_emb_height`` and ``init_pos_emb_width``.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    qkv_hidden_size: int
    patch_size: int
    table_rows: int
    table_columns: int
    projector_eps: float
    text_hidden_size: int

    merge = 2
    """Patches of a merged window's side."""

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.qkv_hidden_size // self.num_attention_heads

    @property
    def patch_values(self) -> int:
        """Values of a patch."""
        return 3 * self.patch_size**2

    @property
    def merged_size(self) -> int:
        """Channels of a merged window."""
        return self.hidden_size * self.merge**2

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """Read a Hugging Face config object or a mapping of the whole model.

        Raises:
            InvalidInputError: a missing key, a value that is not served, or sizes that do not fit
                together.
        """
        outer = ConfigReader(config, "Kimi-K3")
        given, text = outer.get("vision_config"), outer.get("text_config")
        if given is None or text is None:
            raise InvalidInputError(
                "config without vision_config or text_config",
                "a model with images has both",
                "Serve it as KimiLinearForCausalLM, or correct config.json.",
            )
        read = ConfigReader(given, "Kimi-K3's vision tower")
        for key, served in _SERVED.items():
            value = read.get(key, served)
            if isinstance(value, Sequence) and not isinstance(value, str):
                value = tuple(value)
            if value != served:
                raise InvalidInputError(
                    f"{key}={value!r}",
                    f"images are served with {key}={served!r} alone",
                    "Serve another checkpoint.",
                )
        spec = cls(
            hidden_size=read.integer("vt_hidden_size", least=1),
            intermediate_size=read.integer("vt_intermediate_size", least=1),
            num_hidden_layers=read.integer("vt_num_hidden_layers", least=1),
            num_attention_heads=read.integer("vt_num_attention_heads", least=1),
            qkv_hidden_size=read.integer("qkv_hidden_size", least=1),
            patch_size=read.integer("patch_size", 14, least=1),
            table_rows=read.integer("init_pos_emb_height", 64, least=1),
            table_columns=read.integer("init_pos_emb_width", 64, least=1),
            projector_eps=read.number("projector_ln_eps", 1e-5),
            text_hidden_size=ConfigReader(text, "Kimi-K3").integer("hidden_size", least=1),
        )
        if spec.qkv_hidden_size % (4 * spec.num_attention_heads):
            raise InvalidInputError(
                f"qkv_hidden_size={spec.qkv_hidden_size}",
                f"num_attention_heads={spec.num_attention_heads} heads divide it into channels "
                "that rotate by fours",
                FIX_CONFIG,
            )
        return spec


_SERVED: dict[str, Any] = {
    "pos_emb_type": "divided_fixed",
    "pos_emb_interpolation_mode": "bilinear",
    "merge_kernel_size": (2, 2),
    "merge_type": "sd2_tpool",
    "video_attn_type": "spatial_temporal",
    "mm_projector_type": "patchmergerv2",
    "norm_type": "rmsnorm",
    "mlp_type": "mlp2",
    "activation_func": "gelu_pytorch_tanh",
    "attn_bias": False,
    "linear_bias": False,
    "patch_embed_proj_bias": False,
}
"""What the published model says, which is what the tower computes."""
