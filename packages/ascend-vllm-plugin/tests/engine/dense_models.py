"""Tiny checkpoints of ordinary models with random weights, made and run by transformers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from ascend_models_deepseek.testing.tiny_v3 import randomise


@dataclass(frozen=True)
class TinyDenseSpec:
    """Seed and shape of one checkpoint.

    Attributes:
        model_type: transformers' name of the architecture.
        seed: of every random tensor.
        given: fields of its config beside those that all have.
    """

    model_type: str
    seed: int
    vocab_size: int = 300
    given: dict[str, Any] = field(default_factory=dict)


DENSE_SPECS: dict[str, TinyDenseSpec] = {
    "llama": TinyDenseSpec(
        "llama",
        seed=31,
        given={
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "qwen3": TinyDenseSpec(
        "qwen3",
        seed=32,
        given={
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "head_dim": 24,
            "tie_word_embeddings": True,
        },
    ),
    "mistral": TinyDenseSpec(
        "mistral",
        seed=33,
        given={"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16,
               "sliding_window": 40},
    ),
    "deepseek_v2": TinyDenseSpec(
        "deepseek_v2",
        seed=34,
        given={
            "num_attention_heads": 4, "q_lora_rank": None, "kv_lora_rank": 32,
            "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
            "first_k_dense_replace": 1, "n_routed_experts": 6, "n_shared_experts": 2,
            "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0,
                "original_max_position_embeddings": 256, "mscale": 0.707, "mscale_all_dim": 0.707,
                "beta_fast": 32, "beta_slow": 1,
            },
        },
    ),
}  # fmt: skip
"""Scaled frequencies; normed queries and keys with a tied head; a sliding window; latents, with
YaRN and a layer of experts."""


def write_dense_checkpoint(
    spec: TinyDenseSpec, directory: Path, dtype: torch.dtype = torch.float32
) -> Path:
    """Write `config.json` and `model.safetensors` for a spec."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        spec.model_type,
        vocab_size=spec.vocab_size,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
        **spec.given,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomise(model, spec.seed, 1.0)
    model.tie_weights()
    model.to(dtype).save_pretrained(directory)
    return directory
