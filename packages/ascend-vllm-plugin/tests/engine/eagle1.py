"""A draft of the first EAGLE for a trained Llama, with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from .trained import CHECKPOINTS

TARGET = "stories-llama"


def write_draft(folder: Path) -> Path:
    """Its config is the target's, with one layer; embedding and head are the target's."""
    config: dict[str, Any] = json.loads((CHECKPOINTS / "llama" / "config.json").read_text())
    config |= {"num_hidden_layers": 1, "architectures": ["LlamaForCausalLM"]}
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    width = config.get("head_dim") or hidden // config["num_attention_heads"]
    query, key = (config[f"num_{kind}_heads"] * width for kind in ("attention", "key_value"))
    shapes = {
        "fc.weight": (hidden, 2 * hidden),
        "layers.0.self_attn.q_proj.weight": (query, hidden),
        "layers.0.self_attn.k_proj.weight": (key, hidden),
        "layers.0.self_attn.v_proj.weight": (key, hidden),
        "layers.0.self_attn.o_proj.weight": (hidden, query),
        "layers.0.mlp.gate_proj.weight": (inner, hidden),
        "layers.0.mlp.up_proj.weight": (inner, hidden),
        "layers.0.mlp.down_proj.weight": (hidden, inner),
    }
    torch.manual_seed(11)
    tensors = {name: torch.randn(shape) / shape[1] ** 0.5 for name, shape in shapes.items()}
    tensors["layers.0.post_attention_layernorm.weight"] = torch.ones(hidden)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
