"""Tiny MiniMax-M3 checkpoints with random weights, in the published key and tensor names.

The weights come from transformers' own `MiniMaxM3SparseForConditionalGeneration`, so whatever reads
the checkpoint is compared with an implementation that this project did not write.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ascend_models_minimax.testing.published_names import published_names

MTP_MODES = ("none", "random", "aligned")
"""How draft layers are made: absent, random, or derived from the target's weights."""

TEXT_TOKENS = 490
"""Ids below this are text; those of images and video lie above."""

_MTP = "language_model.model.mtp.layers"


@dataclass(frozen=True)
class TinyM3Spec:
    """Seed and shape of one tiny checkpoint.

    Field names and units are those of the published `config.json`.

    Attributes:
        seed: Seed of every random tensor.
        sparse_layers: `sparse_attention_freq`: layers whose attention selects blocks.
        moe_layers: `moe_layer_freq`: layers with experts.
        mtp: One of `MTP_MODES`.
        num_mtp_modules: Draft layers, unless `mtp` is "none".
        residual_gain: Factor on the projections that write to the residual stream. Below one, the
            last token decides more of the next one, so "aligned" drafts are right more often.
    """

    seed: int = 0
    vocab_size: int = 512
    hidden_size: int = 96
    intermediate_size: int = 32
    dense_intermediate_size: int = 80
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 32
    rotary_dim: int = 16
    rope_theta: float = 5000000.0
    num_local_experts: int = 8
    num_experts_per_tok: int = 3
    n_shared_experts: int = 1
    routed_scaling_factor: float = 2.0
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 1.5
    max_position_embeddings: int = 4096
    index_dim: int = 32
    block_size: int = 16
    topk_blocks: int = 4
    local_blocks: int = 1
    sparse_layers: tuple[int, ...] = (0, 1, 1, 0, 1)
    moe_layers: tuple[int, ...] = (0, 0, 1, 1, 1)
    mtp: str = "none"
    num_mtp_modules: int = 1
    residual_gain: float = 1.0

    def __post_init__(self) -> None:
        """Reject a draft mode that does not exist (ValueError)."""
        if self.mtp not in MTP_MODES:
            raise ValueError(f"mtp={self.mtp!r} is unknown; use one of {', '.join(MTP_MODES)}")

    def text_config(self) -> dict[str, Any]:
        """Return `text_config` as the published checkpoints spell it."""
        same_name = (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "dense_intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "rotary_dim",
            "rope_theta",
            "num_local_experts",
            "num_experts_per_tok",
            "n_shared_experts",
            "routed_scaling_factor",
            "swiglu_alpha",
            "swiglu_limit",
            "max_position_embeddings",
        )
        return {
            "architectures": ["MiniMaxM3SparseForCausalLM"],
            **{name: getattr(self, name) for name in same_name},
            "num_hidden_layers": len(self.sparse_layers),
            "shared_intermediate_size": self.intermediate_size * self.n_shared_experts,
            "partial_rotary_factor": self.rotary_dim / self.head_dim,
            "moe_layer_freq": list(self.moe_layers),
            "sparse_attention_config": {
                "use_sparse_attention": True,
                "sparse_index_dim": self.index_dim,
                "sparse_num_index_heads": self.num_key_value_heads,
                "sparse_topk_blocks": self.topk_blocks,
                "sparse_block_size": self.block_size,
                "sparse_disable_index_value": list(self.sparse_layers),
                "sparse_score_type": "max",
                "sparse_init_block": 0,
                "sparse_local_block": self.local_blocks,
                "sparse_attention_freq": list(self.sparse_layers),
            },
            "use_gemma_norm": True,
            "use_qk_norm": True,
            "qk_norm_type": "per_head",
            "attention_output_gate": False,
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
            "hidden_act": "swigluoai",
            "rms_norm_eps": 1e-6,
            "num_mtp_modules": 0 if self.mtp == "none" else self.num_mtp_modules,
            "tie_word_embeddings": False,
            "bos_token_id": 0,
            "eos_token_id": 1,
        }

    def published_config(self) -> dict[str, Any]:
        """Return `config.json` as the published checkpoints spell it."""
        return {
            "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
            "model_type": "minimax_m3_vl",
            "text_config": self.text_config(),
            "vision_config": {
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_channels": 3,
                "image_size": 112,
                "patch_size": 14,
                "hidden_act": "gelu",
                "layer_norm_eps": 1e-5,
                "img_token_compression_config": {
                    "image_token_compression_method": "patch_merge",
                    "spatial_merge_size": 2,
                    "temporal_patch_size": 2,
                },
                "position_embedding_type": "rope",
                "rope_mode": "3d",
                "rope_theta": 10000.0,
                "vision_segment_max_frames": 4,
            },
            "image_token_index": 500,
            "video_token_index": 501,
            "projector_hidden_size": 48,
            "torch_dtype": "float32",
        }


M3_SPECS: dict[str, TinyM3Spec] = {
    "m3": TinyM3Spec(seed=21, mtp="aligned", residual_gain=0.2),
    "m3_odd": TinyM3Spec(
        seed=22,
        hidden_size=60,
        intermediate_size=24,
        dense_intermediate_size=36,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=20,
        rotary_dim=10,
        num_local_experts=6,
        num_experts_per_tok=2,
        n_shared_experts=2,
        index_dim=12,
        block_size=8,
        topk_blocks=3,
        local_blocks=2,
        sparse_layers=(1, 0, 1),
        moe_layers=(1, 0, 1),
        mtp="random",
        num_mtp_modules=2,
    ),
}
"""The checkpoints that the test tiers share, by name; "m3" divides by two, "m3_odd" by three."""


def write_m3_checkpoint(
    spec: TinyM3Spec, directory: str | Path, dtype: torch.dtype = torch.float32
) -> Path:
    """Write `config.json` and `model.safetensors` for a spec.

    Args:
        spec: What to build.
        directory: Created when absent; existing files of the same names are replaced.
        dtype: float32 or bfloat16 for everything but the router, which stays float32 as in the
            published checkpoints.

    Returns:
        The directory as a path.
    """
    from transformers import MiniMaxM3SparseForConditionalGeneration, MiniMaxM3VLConfig

    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    config = spec.published_config()
    config["torch_dtype"] = str(dtype).removeprefix("torch.")
    (path / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    model = MiniMaxM3SparseForConditionalGeneration(MiniMaxM3VLConfig.from_pretrained(path))
    randomise(model.float(), spec)
    tensors = published_names(model.state_dict())
    tensors |= mtp_tensors(spec, tensors)
    stored = {
        name: tensor.to(torch.float32 if _is_router(name) else dtype).contiguous()
        for name, tensor in tensors.items()
    }
    save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
    return path


def _is_router(name: str) -> bool:
    return name.endswith(("e_score_correction_bias", "block_sparse_moe.gate.weight"))


@torch.no_grad()
def randomise(model: torch.nn.Module, spec: TinyM3Spec) -> None:
    """Fill a transformers model in place, deterministically and in name order."""
    generator = torch.Generator().manual_seed(spec.seed)
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    for name in sorted(named):
        if "inv_freq" not in name:
            tensor = named[name]
            tensor.copy_(random_value(name, tensor.shape, generator, spec.residual_gain))
    # transformers takes a placeholder that the model itself generates for one of an image.
    named["lm_head.weight"][TEXT_TOKENS:] = 0


def random_value(
    name: str, shape: torch.Size, generator: torch.Generator, residual_gain: float
) -> torch.Tensor:
    """Draw one float tensor, at a scale chosen by the parameter's name."""
    noise = torch.randn(shape, generator=generator)
    if "embed_tokens" in name:
        return noise
    if name.endswith(("bias", "norm.weight")) or "layernorm" in name:
        # Norms of the text model multiply by one more than their weight.
        return 0.1 * noise
    if "norm" in name:
        return 1 + 0.1 * noise
    writes = ("o_proj.weight", "down_proj", "down_proj.weight")
    gain = residual_gain if "language_model" in name and name.endswith(writes) else 1.0
    return gain * noise / math.sqrt(math.prod(shape[1:]) if len(shape) > 3 else shape[-1])


def mtp_tensors(spec: TinyM3Spec, target: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Make the draft layers for a target checkpoint, under their published names.

    "aligned" keeps the values of the target's last layer, which selects blocks and has experts,
    lets the next token's embedding through and adds little of the hidden state: the draft then sees
    what the target sees except for the other layers, and is often right where those matter little.
    """
    if spec.mtp == "none":
        return {}
    generator = torch.Generator().manual_seed(7919 * (spec.seed + 1))
    last = f"language_model.model.layers.{len(spec.sparse_layers) - 1}."
    hidden = spec.hidden_size
    eye = torch.eye(hidden)
    made: dict[str, torch.Tensor] = {}
    for i in range(spec.num_mtp_modules):
        own = f"{_MTP}.{i}."
        layer = {
            f"{own}transformer_layer.{name.removeprefix(last)}": tensor.clone()
            for name, tensor in target.items()
            if name.startswith(last)
        }
        layer |= {
            f"{own}enorm.weight": torch.zeros(hidden),
            f"{own}hnorm.weight": torch.zeros(hidden),
            f"{own}eh_proj.weight": torch.cat([eye, 0.1 * eye], dim=1),
            f"{own}final_layernorm.weight": target["language_model.model.norm.weight"].clone(),
        }
        if spec.mtp == "random":
            layer = {
                name: random_value(name, layer[name].shape, generator, 1.0)
                for name in sorted(layer)
            }
        made |= layer
    return made
