"""Tiny DeepSeek-V3 checkpoints with random weights, in the published key and tensor names.

The weights come from transformers' own `DeepseekV3ForCausalLM`, so whatever reads the checkpoint is
compared with an implementation that this project did not write.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ascend_models_deepseek.testing.mtp_weights import MTP_MODES, random_like
from ascend_models_deepseek.testing.tiny_v4 import random_value

_GENERATOR_ONLY = ("seed", "yarn", "mtp", "residual_gain")


@dataclass(frozen=True)
class TinyV3Spec:
    """Seed and shape of one tiny checkpoint.

    Field names and units are those of the published `config.json`.

    Attributes:
        seed: Seed of every random tensor.
        yarn: `(factor, original_max_position_embeddings, mscale, mscale_all_dim)`, or None for
            plain RoPE.
        mtp: "none" for no draft layer, "random" for a random one, "aligned" for one derived from
            the target's weights so that a part of its drafts is accepted.
        residual_gain: Factor on the projections that write to the residual stream. Below one, the
            last token decides more of the next one, so "aligned" drafts are right more often.
    """

    seed: int = 0
    vocab_size: int = 512
    hidden_size: int = 128
    intermediate_size: int = 96
    moe_intermediate_size: int = 64
    num_hidden_layers: int = 4
    num_attention_heads: int = 8
    q_lora_rank: int | None = 48
    kv_lora_rank: int = 64
    qk_nope_head_dim: int = 16
    qk_rope_head_dim: int = 16
    v_head_dim: int = 24
    n_routed_experts: int = 16
    n_shared_experts: int = 1
    num_experts_per_tok: int = 4
    n_group: int = 4
    topk_group: int = 2
    routed_scaling_factor: float = 2.5
    first_k_dense_replace: int = 1
    rope_theta: float = 10000.0
    yarn: tuple[float, int, float, float] | None = (16.0, 256, 1.0, 0.8)
    max_position_embeddings: int = 4096
    mtp: str = "none"
    residual_gain: float = 1.0

    def __post_init__(self) -> None:
        """Reject a draft mode that does not exist (ValueError)."""
        if self.mtp not in MTP_MODES:
            raise ValueError(f"mtp={self.mtp!r} is unknown; use one of {', '.join(MTP_MODES)}")

    def published_config(self) -> dict[str, Any]:
        """Return `config.json` as the published checkpoints spell it."""
        scaling = None
        if self.yarn is not None:
            factor, original, mscale, whole = self.yarn
            scaling = {
                "type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": original,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": mscale,
                "mscale_all_dim": whole,
            }
        same_name = [f.name for f in fields(self) if f.name not in _GENERATOR_ONLY]
        return {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            **{name: getattr(self, name) for name in same_name},
            "rope_scaling": scaling,
            "num_key_value_heads": self.num_attention_heads,
            "moe_layer_freq": 1,
            "scoring_func": "sigmoid",
            "norm_topk_prob": True,
            "topk_method": "noaux_tc",
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "num_nextn_predict_layers": int(self.mtp != "none"),
            "tie_word_embeddings": False,
            "attention_bias": False,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "torch_dtype": "float32",
        }


V3_SPECS: dict[str, TinyV3Spec] = {
    "v3": TinyV3Spec(seed=11, mtp="aligned", residual_gain=0.2),
    "v3_plain": TinyV3Spec(
        seed=12,
        vocab_size=500,
        hidden_size=96,
        intermediate_size=80,
        moe_intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=3,
        q_lora_rank=None,
        kv_lora_rank=40,
        qk_nope_head_dim=20,
        qk_rope_head_dim=8,
        v_head_dim=12,
        n_routed_experts=6,
        n_shared_experts=2,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=0,
        yarn=None,
        max_position_embeddings=2048,
    ),
}
"""The checkpoints that the test tiers share, by name; "v3" divides by two, "v3_plain" by three."""


def write_v3_checkpoint(
    spec: TinyV3Spec, directory: str | Path, dtype: torch.dtype = torch.float32
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
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    config = spec.published_config()
    config["torch_dtype"] = str(dtype).removeprefix("torch.")
    (path / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    model = DeepseekV3ForCausalLM(DeepseekV3Config.from_pretrained(path)).float()
    randomise(model, spec.seed, spec.residual_gain)
    tensors = published_names(model.state_dict())
    tensors |= v3_mtp_tensors(spec.mtp, tensors, spec.num_hidden_layers, spec.seed)
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


@torch.no_grad()
def randomise(model: torch.nn.Module, seed: int, residual_gain: float) -> None:
    """Fill a transformers model in place, deterministically and in name order."""
    generator = torch.Generator().manual_seed(seed)
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    for name in sorted(named):
        if "inv_freq" in name:
            continue
        tensor = named[name]
        gain = residual_gain if name.endswith("o_proj.weight") else 1.0
        tensor.copy_(gain * random_value(name, tensor.shape, generator, residual_gain))


def published_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Split transformers' stacked experts into the published one tensor for each."""
    renamed: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        if name.endswith("mlp.experts.gate_up_proj"):
            for e, both in enumerate(tensor):
                prefix = name.removesuffix("gate_up_proj") + str(e)
                gate, up = both.chunk(2)
                renamed[f"{prefix}.gate_proj.weight"] = gate.clone()
                renamed[f"{prefix}.up_proj.weight"] = up.clone()
        elif name.endswith("mlp.experts.down_proj"):
            for e, down in enumerate(tensor):
                prefix = name.removesuffix("down_proj") + str(e)
                renamed[f"{prefix}.down_proj.weight"] = down.clone()
        else:
            renamed[name] = tensor
    return renamed


def v3_mtp_tensors(
    mode: str, target: dict[str, torch.Tensor], num_layers: int, seed: int
) -> dict[str, torch.Tensor]:
    """Make the draft layer for a target checkpoint, under its published names.

    "aligned" keeps the values of the target's last layer, lets the next token's embedding through
    and adds little of the hidden state: the draft then sees what the target sees except for the
    other layers, and is often right where those matter little.

    Args:
        mode: One of `MTP_MODES`.
        target: The target's tensors under published names.
        num_layers: Number of target layers.
        seed: The checkpoint's seed.
    """
    if mode == "none":
        return {}
    generator = torch.Generator().manual_seed(7919 * (seed + 1))
    hidden = target["model.embed_tokens.weight"].shape[1]
    last, own = f"model.layers.{num_layers - 1}.", f"model.layers.{num_layers}."
    tensors = {
        own + name.removeprefix(last): tensor.clone()
        for name, tensor in target.items()
        if name.startswith(last)
    }
    eye = torch.eye(hidden)
    tensors |= {
        f"{own}enorm.weight": torch.ones(hidden),
        f"{own}hnorm.weight": torch.ones(hidden),
        f"{own}eh_proj.weight": torch.cat([eye, 0.1 * eye], dim=1),
        f"{own}shared_head.norm.weight": target["model.norm.weight"].clone(),
    }
    if mode == "aligned":
        return tensors
    return {name: random_like(name, tensors[name], generator) for name in sorted(tensors)}
