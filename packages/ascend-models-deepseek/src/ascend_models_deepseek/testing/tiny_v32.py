"""Tiny DeepSeek-V3.2 and GLM-5 checkpoints with random weights, in the published names.

The weights come from transformers' own models, so whatever reads a checkpoint is compared with an
implementation that this project did not write.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ascend_models_deepseek.testing.tiny_v3 import (
    TinyV3Spec,
    published_names,
    randomise,
    v3_mtp_tensors,
)


@dataclass(frozen=True)
class TinyV32Spec(TinyV3Spec):
    """Seed and shape of one tiny checkpoint of DeepSeek-V3.2.

    Field names and units are those of the published `config.json`. Sixteen indexer heads, since
    with few of them many scores are rectified to zero and tie.
    """

    index_n_heads: int = 16
    index_head_dim: int = 32
    index_topk: int = 24

    def published_config(self) -> dict[str, Any]:
        """Return `config.json` as the published checkpoints spell it."""
        return super().published_config() | {
            "architectures": ["DeepseekV32ForCausalLM"],
            "model_type": "deepseek_v32",
        }


@dataclass(frozen=True)
class TinyGlmSpec(TinyV32Spec):
    """The same for GLM-5, some of whose layers take over the selection of one in front of them."""

    index_topk_freq: int = 2
    index_skip_topk_offset: int = 2
    index_share_for_mtp_iteration: bool = False

    def published_config(self) -> dict[str, Any]:
        """Return `config.json` as the published checkpoints spell it."""
        return super().published_config() | {
            "architectures": ["GlmMoeDsaForCausalLM"],
            "model_type": "glm_moe_dsa",
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "indexer_rope_interleave": True,
        }


_GLM = TinyGlmSpec(
    seed=22,
    num_hidden_layers=5,
    num_attention_heads=4,
    q_lora_rank=40,
    kv_lora_rank=48,
    qk_nope_head_dim=24,
    v_head_dim=32,
    n_routed_experts=8,
    num_experts_per_tok=3,
    n_group=1,
    topk_group=1,
    first_k_dense_replace=2,
    rope_theta=1000000.0,
    yarn=None,
    index_topk=20,
    mtp="aligned",
    residual_gain=0.3,
)

V32_SPECS: dict[str, TinyV32Spec] = {
    "v32": TinyV32Spec(seed=21, num_hidden_layers=3, mtp="aligned", residual_gain=0.3),
    "glm": _GLM,
    "glm_shared": replace(_GLM, index_share_for_mtp_iteration=True),
    "v32_wide": TinyV32Spec(
        seed=23,
        num_hidden_layers=2,
        num_attention_heads=4,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        n_routed_experts=8,
        num_experts_per_tok=3,
        index_n_heads=16,
        index_head_dim=128,
    ),
}
"""The checkpoints that the test tiers share, by name; all divide by two.

"glm_shared" is "glm" whose draft steps share the first one's selection.
"v32_wide" has the published widths of latents and indexer keys, which torch_npu's operators need.
"""


def write_v32_checkpoint(
    spec: TinyV32Spec, directory: str | Path, dtype: torch.dtype = torch.float32
) -> Path:
    """Write `config.json` and `model.safetensors` for a spec.

    Args:
        spec: What to build.
        directory: Created when absent; existing files of the same names are replaced.
        dtype: float32 or bfloat16 for everything but the router's bias, which stays float32 as in
            the published checkpoints.

    Returns:
        The directory as a path.
    """
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    config = spec.published_config()
    config["torch_dtype"] = str(dtype).removeprefix("torch.")
    (path / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    config_class, model_class = classes_of(config["model_type"])
    model = model_class(config_class.from_pretrained(path)).float()
    randomise(model, spec.seed, spec.residual_gain)
    tensors = published_names(model.state_dict())
    generator = torch.Generator().manual_seed(spec.seed + 1)
    for name in sorted(tensors):
        if name.endswith("k_norm.bias"):
            # The generator takes it for a norm's weight, which is near one.
            tensors[name] = 0.3 * torch.randn(tensors[name].shape, generator=generator)
    tensors |= v3_mtp_tensors(spec.mtp, tensors, spec.num_hidden_layers, spec.seed)
    draft = f"model.layers.{spec.num_hidden_layers}.self_attn."
    tensors |= draft_indexer(tensors, spec.num_hidden_layers, draft, spec.mtp)
    stored = {
        name: tensor.to(torch.float32 if name.endswith("e_score_correction_bias") else dtype)
        for name, tensor in tensors.items()
    }
    save_file(
        {name: tensor.contiguous() for name, tensor in stored.items()},
        path / "model.safetensors",
        metadata={"format": "pt"},
    )
    return path


def classes_of(model_type: str) -> tuple[Any, Any]:
    """Return transformers' config and model of a `model_type`.

    By name, since vLLM registers another config class for one of them.
    """
    import transformers

    return {
        "deepseek_v32": (transformers.DeepseekV32Config, transformers.DeepseekV32ForCausalLM),
        "glm_moe_dsa": (transformers.GlmMoeDsaConfig, transformers.GlmMoeDsaForCausalLM),
    }[model_type]


def draft_indexer(
    tensors: dict[str, torch.Tensor], layers: int, draft: str, mode: str
) -> dict[str, torch.Tensor]:
    """Return an indexer for a draft layer that was made of a layer without one; else nothing.

    Args:
        tensors: The checkpoint under published names.
        layers: Number of target layers.
        draft: Prefix of the draft's attention.
        mode: How the draft was made.
    """
    if mode == "none" or any(name.startswith(f"{draft}indexer.") for name in tensors):
        return {}
    for layer in range(layers - 1, -1, -1):
        source = f"model.layers.{layer}.self_attn."
        found = {
            draft + name.removeprefix(source): tensor.clone()
            for name, tensor in tensors.items()
            if name.startswith(f"{source}indexer.")
        }
        if found:
            return found
    raise ValueError("no layer of the target has an indexer")
