"""From transformers' names of MiniMax-M3's tensors to the published ones."""

from __future__ import annotations

import re

import torch

_RENAMED = (
    (r"^lm_head\.", "language_model.lm_head."),
    (r"^model\.language_model\.", "language_model.model."),
    (
        r"^model\.vision_tower\.embeddings\.proj\.",
        "vision_tower.vision_model.embeddings.patch_embedding.",
    ),
    (r"^model\.vision_tower\.layers\.", "vision_tower.vision_model.encoder.layers."),
    (r"^model\.vision_tower\.pre_layrnorm\.", "vision_tower.vision_model.pre_layrnorm."),
    (r"^model\.multi_modal_projector\.merge_", "patch_merge_mlp."),
    (r"^model\.multi_modal_projector\.", "multi_modal_projector."),
    (r"\.mlp\.gate\.e_score_correction_bias$", ".block_sparse_moe.e_score_correction_bias"),
    (r"\.mlp\.(gate\.|experts\.|shared_experts\.)", r".block_sparse_moe.\1"),
    (r"\.self_attn\.indexer\.([qk])_", r".self_attn.index_\1_"),
)


def published_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rename every tensor, and split the stacks of experts and of gate and up."""
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
        elif name.endswith("gate_up_proj.weight"):
            gate, up = tensor.chunk(2)
            renamed[name.replace("gate_up_proj", "gate_proj")] = gate.clone()
            renamed[name.replace("gate_up_proj", "up_proj")] = up.clone()
        else:
            renamed[name] = tensor
    return renamed
