"""Tiny Kimi-Linear checkpoints with random weights, in the published key and tensor names.

The weights come from transformers' own `KimiLinearForCausalLM`, so whatever reads the checkpoint is
compared with an implementation that this project did not write.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file


@dataclass(frozen=True)
class TinyKimiLinearSpec:
    """Seed and shape of one tiny checkpoint.

    Field names and units are those of the published `config.json`.

    Attributes:
        seed: Seed of every random tensor.
        kda_layers: Layers with delta attention, counted from one; the others have latent attention.
        kda_heads: `linear_attn_config.num_heads`.
        kda_head_dim: `linear_attn_config.head_dim`.
        conv_width: `linear_attn_config.short_conv_kernel_size`.
    """

    seed: int = 0
    vocab_size: int = 512
    hidden_size: int = 96
    intermediate_size: int = 128
    moe_intermediate_size: int = 32
    num_hidden_layers: int = 5
    num_attention_heads: int = 4
    kv_lora_rank: int = 32
    q_lora_rank: int | None = None
    qk_rope_head_dim: int = 8
    qk_nope_head_dim: int = 16
    v_head_dim: int = 24
    num_experts: int = 8
    num_experts_per_token: int = 3
    num_shared_experts: int = 1
    num_expert_group: int = 1
    topk_group: int = 1
    routed_scaling_factor: float = 2.446
    first_k_dense_replace: int = 1
    kda_layers: tuple[int, ...] = (1, 2, 4)
    kda_heads: int = 4
    kda_head_dim: int = 32
    conv_width: int = 4
    model_max_length: int = 4096

    def published_config(self) -> dict[str, Any]:
        """Return `config.json` as the published checkpoints spell it."""
        same_name = (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "moe_intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "kv_lora_rank",
            "q_lora_rank",
            "qk_rope_head_dim",
            "qk_nope_head_dim",
            "v_head_dim",
            "num_experts",
            "num_experts_per_token",
            "num_shared_experts",
            "num_expert_group",
            "topk_group",
            "routed_scaling_factor",
            "first_k_dense_replace",
            "model_max_length",
        )
        layers = range(1, self.num_hidden_layers + 1)
        return {
            "architectures": ["KimiLinearForCausalLM"],
            "model_type": "kimi_linear",
            **{name: getattr(self, name) for name in same_name},
            "num_key_value_heads": self.num_attention_heads,
            "linear_attn_config": {
                "kda_layers": list(self.kda_layers),
                "full_attn_layers": [i for i in layers if i not in self.kda_layers],
                "num_heads": self.kda_heads,
                "head_dim": self.kda_head_dim,
                "short_conv_kernel_size": self.conv_width,
            },
            "mla_use_nope": True,
            "moe_layer_freq": 1,
            "moe_renormalize": True,
            "moe_router_activation_func": "sigmoid",
            "use_grouped_topk": True,
            "num_nextn_predict_layers": 0,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 2,
            "torch_dtype": "float32",
        }


KIMI_LINEAR_SPECS: dict[str, TinyKimiLinearSpec] = {
    "kimi_linear": TinyKimiLinearSpec(seed=31),
    "kimi_linear_odd": TinyKimiLinearSpec(
        seed=32,
        vocab_size=500,
        hidden_size=60,
        intermediate_size=36,
        moe_intermediate_size=24,
        num_hidden_layers=4,
        num_attention_heads=3,
        kv_lora_rank=20,
        q_lora_rank=28,
        qk_rope_head_dim=6,
        qk_nope_head_dim=10,
        v_head_dim=12,
        num_experts=6,
        num_experts_per_token=2,
        num_shared_experts=2,
        num_expert_group=3,
        topk_group=2,
        first_k_dense_replace=2,
        kda_layers=(2, 3),
        kda_heads=3,
        kda_head_dim=16,
        conv_width=3,
    ),
}
"""The checkpoints that the test tiers share, by name; the first divides by two."""


def write_kimi_linear_checkpoint(
    spec: TinyKimiLinearSpec, directory: str | Path, dtype: torch.dtype = torch.float32
) -> Path:
    """Write `config.json` and `model.safetensors` for a spec.

    Args:
        spec: What to build.
        directory: Created when absent; existing files of the same names are replaced.
        dtype: float32 or bfloat16 for everything but the router and the decays' parameters, which
            stay float32 as in the published checkpoints.

    Returns:
        The directory as a path.
    """
    from transformers import KimiLinearConfig, KimiLinearForCausalLM

    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    config = spec.published_config()
    config["torch_dtype"] = str(dtype).removeprefix("torch.")
    (path / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    model = KimiLinearForCausalLM(KimiLinearConfig.from_pretrained(path)).float()
    randomise(model, spec.seed)
    stored = {
        name: tensor.to(torch.float32 if is_float32(name) else dtype).contiguous()
        for name, tensor in published_names(model.state_dict()).items()
    }
    save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
    return path


def is_float32(name: str) -> bool:
    """Whether the published checkpoints store a tensor in float32, whatever the others have."""
    return name.endswith(("e_score_correction_bias", "gate.weight", "dt_bias", "A_log"))


@torch.no_grad()
def randomise(model: torch.nn.Module, seed: int) -> None:
    """Fill a transformers model in place, deterministically and in name order."""
    generator = torch.Generator().manual_seed(seed)
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    for name in sorted(named):
        if "inv_freq" not in name:
            named[name].copy_(random_value(name, named[name].shape, generator))


def random_value(name: str, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """Draw one float tensor, at a scale chosen by the parameter's name."""
    noise = torch.randn(shape, generator=generator)
    if "A_log" in name:
        # Rates from 1 to 8, as the published initialisation draws them.
        return (1 + 7 * torch.rand(shape, generator=generator)).log()
    if "dt_bias" in name:
        # Decays that forget a token within ten to a hundred others.
        return noise - 4
    if "embed_tokens" in name:
        return noise
    if "conv1d" in name:
        return 0.5 * noise
    if name.endswith("bias"):
        return 0.1 * noise
    if "norm" in name:
        return 1 + 0.1 * noise
    return noise / shape[-1] ** 0.5


_RENAMED = (
    (r"\.self_attn\.forget_gate\.", ".self_attn."),
    (r"\.mlp\.(gate\.|experts\.|shared_experts\.)", r".block_sparse_moe.\1"),
)


def published_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rename transformers' tensors, and split the stacks of experts and of convolutions."""
    renamed: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        for pattern, published in _RENAMED:
            name = re.sub(pattern, published, name)
        stem, _, last = name.rpartition(".")
        if last == "gate_up_proj":
            for e, both in enumerate(tensor):
                gate, up = both.chunk(2)
                renamed[f"{stem}.{e}.w1.weight"] = gate.clone()
                renamed[f"{stem}.{e}.w3.weight"] = up.clone()
        elif last == "down_proj":
            for e, down in enumerate(tensor):
                renamed[f"{stem}.{e}.w2.weight"] = down.clone()
        elif name.endswith("self_attn.conv1d.weight"):
            for part, one in zip("qkv", tensor.chunk(3), strict=True):
                renamed[name.replace("conv1d", f"{part}_conv1d")] = one.clone()
        else:
            renamed[name] = tensor
    return renamed
