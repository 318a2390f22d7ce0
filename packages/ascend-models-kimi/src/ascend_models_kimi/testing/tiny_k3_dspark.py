"""Tiny DSpark drafts of a tiny Kimi-K3 with random weights, in the published names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ascend_models_kimi.testing.tiny_k3 import TinyK3Spec


@dataclass(frozen=True)
class TinyK3DSparkSpec:
    """Seed and shape of one draft.

    Field names are those of the published `config.json`.

    Attributes:
        target: What it drafts for.
        seed: Of every random tensor.
        sample_from_anchor: The anchor's place predicts the first draft.
    """

    target: TinyK3Spec
    seed: int = 5
    num_hidden_layers: int = 2
    intermediate_size: int = 112
    num_attention_heads: int = 4
    q_lora_rank: int = 40
    qk_nope_head_dim: int = 12
    v_head_dim: int = 20
    target_layer_ids: tuple[int, ...] = (0, 2, 4)
    markov_rank: int = 16
    mask_token_id: int = 3
    sample_from_anchor: bool = True
    rope_theta: float = 100.0
    logit_scale: float = 1.0

    def config(self) -> dict[str, Any]:
        """Return `config.json`."""
        target = self.target
        return {
            "architectures": ["K3DSparkModel"],
            "model_type": "k3_dspark",
            "dtype": "float32",
            "vocab_size": target.vocab_size,
            "hidden_size": target.hidden_size,
            "target_hidden_size": target.hidden_size,
            "num_target_layers": len(self.target_layer_ids),
            "kv_lora_rank": target.kv_lora_rank,
            "qk_rope_head_dim": target.qk_rope_head_dim,
            "rms_norm_eps": 1e-6,
            "hidden_act": "silu",
            "max_position_embeddings": 4096,
            "num_key_value_heads": self.num_attention_heads,
            **{
                name: getattr(self, name)
                for name in (
                    "num_hidden_layers",
                    "intermediate_size",
                    "num_attention_heads",
                    "q_lora_rank",
                    "qk_nope_head_dim",
                    "v_head_dim",
                    "markov_rank",
                    "mask_token_id",
                    "sample_from_anchor",
                    "rope_theta",
                    "logit_scale",
                )
            },
            "target_layer_ids": list(self.target_layer_ids),
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of all tensors."""
        target, heads = self.target, self.num_attention_heads
        hidden, rope, rank = target.hidden_size, target.qk_rope_head_dim, target.kv_lora_rank
        found: dict[str, tuple[int, ...]] = {
            "context_proj.weight": (hidden, hidden * len(self.target_layer_ids)),
            "context_norm.weight": (hidden,),
            "final_norm.weight": (hidden,),
            "markov_head.markov_w1.weight": (target.vocab_size, self.markov_rank),
            "markov_head.markov_w2.weight": (target.vocab_size, self.markov_rank),
        }
        layer = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "self_attn.q_a_proj.weight": (self.q_lora_rank, hidden),
            "self_attn.q_a_layernorm.weight": (self.q_lora_rank,),
            "self_attn.q_b_proj.weight": (
                heads * (self.qk_nope_head_dim + rope),
                self.q_lora_rank,
            ),
            "self_attn.kv_a_proj_with_mqa.weight": (rank + rope, hidden),
            "self_attn.kv_a_layernorm.weight": (rank,),
            "self_attn.kv_b_proj.weight": (
                heads * (self.qk_nope_head_dim + self.v_head_dim),
                rank,
            ),
            "self_attn.o_proj.weight": (hidden, heads * self.v_head_dim),
            "mlp.gate_proj.weight": (self.intermediate_size, hidden),
            "mlp.up_proj.weight": (self.intermediate_size, hidden),
            "mlp.down_proj.weight": (hidden, self.intermediate_size),
        }
        for number in range(self.num_hidden_layers):
            found |= {f"layers.{number}.{name}": shape for name, shape in layer.items()}
        return found


def write_k3_dspark(spec: TinyK3DSparkSpec, directory: Path) -> Path:
    """Write `config.json` and `model.safetensors`; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(spec.seed)
    tensors = {}
    for name, shape in spec.shapes().items():
        noise = torch.randn(shape, generator=generator)
        tensors[name] = 1 + 0.2 * noise if len(shape) == 1 else noise / shape[-1] ** 0.5
    (directory / "config.json").write_text(json.dumps(spec.config()))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
