"""transformers' DeepSeek-V4 parameter names to those of the published checkpoints.

The table is written out by hand: transformers' own saving keeps a `model.` prefix and a few of its
own names, which no published checkpoint has.
"""

from __future__ import annotations

import re

import torch

_TOP = {
    "lm_head.weight": "head.weight",
    "model.embed_tokens.weight": "embed.weight",
    "model.norm.weight": "norm.weight",
    "model.hc_head.hc_fn": "hc_head_fn",
    "model.hc_head.hc_base": "hc_head_base",
    "model.hc_head.hc_scale": "hc_head_scale",
}

_COMPRESSOR = {
    "kv_proj.weight": "wkv.weight",
    "gate_proj.weight": "wgate.weight",
    "position_bias": "ape",
    "kv_norm.weight": "norm.weight",
}

_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_a_proj.weight": "attn.wq_a.weight",
    "self_attn.q_a_norm.weight": "attn.q_norm.weight",
    "self_attn.q_b_proj.weight": "attn.wq_b.weight",
    "self_attn.kv_proj.weight": "attn.wkv.weight",
    "self_attn.kv_norm.weight": "attn.kv_norm.weight",
    "self_attn.o_a_proj.weight": "attn.wo_a.weight",
    "self_attn.o_b_proj.weight": "attn.wo_b.weight",
    "self_attn.sinks": "attn.attn_sink",
    "self_attn.compressor.indexer.q_b_proj.weight": "attn.indexer.wq_b.weight",
    "self_attn.compressor.indexer.scorer.weights_proj.weight": "attn.indexer.weights_proj.weight",
    **{f"self_attn.compressor.{hf}": f"attn.compressor.{o}" for hf, o in _COMPRESSOR.items()},
    **{
        f"self_attn.compressor.indexer.{hf}": f"attn.indexer.compressor.{o}"
        for hf, o in _COMPRESSOR.items()
    },
    **{
        f"{hf}_hc.{part}": f"hc_{hf}_{part}"
        for hf in ("attn", "ffn")
        for part in ("fn", "base", "scale")
    },
    "mlp.gate.weight": "ffn.gate.weight",
    "mlp.gate.e_score_correction_bias": "ffn.gate.bias",
    "mlp.gate.tid2eid": "ffn.gate.tid2eid",
    "mlp.shared_experts.gate_proj.weight": "ffn.shared_experts.w1.weight",
    "mlp.shared_experts.down_proj.weight": "ffn.shared_experts.w2.weight",
    "mlp.shared_experts.up_proj.weight": "ffn.shared_experts.w3.weight",
}

_LAYER_PREFIX = re.compile(r"model\.layers\.(\d+)\.(.+)")


def to_original(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rename a transformers state dict and split its fused expert tensors.

    Args:
        state: `DeepseekV4ForCausalLM.state_dict()`; experts are `gate_up_proj [E, 2I, H]` and
            `down_proj [E, H, I]`.

    Returns:
        The same values under original names, experts as `w1 [I, H]`, `w2 [H, I]`, `w3 [I, H]`.

    Raises:
        KeyError: For a name that has no original counterpart.
    """
    renamed: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        match = _LAYER_PREFIX.fullmatch(name)
        if match is None:
            renamed[_TOP[name]] = tensor
            continue
        prefix, leaf = f"layers.{match[1]}.", match[2]
        if leaf == "mlp.experts.gate_up_proj":
            for expert, gate_up in enumerate(tensor):
                gate, up = gate_up.chunk(2)
                renamed[f"{prefix}ffn.experts.{expert}.w1.weight"] = gate.clone()
                renamed[f"{prefix}ffn.experts.{expert}.w3.weight"] = up.clone()
        elif leaf == "mlp.experts.down_proj":
            for expert, down in enumerate(tensor):
                renamed[f"{prefix}ffn.experts.{expert}.w2.weight"] = down.clone()
        else:
            renamed[prefix + _LAYER[leaf]] = tensor
    return renamed


def block_to_transformers(block: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Turn one decoder block's original names (no prefix) back into transformers' names.

    Args:
        block: For instance `{"attn.wq_a.weight": ..., "ffn.experts.0.w1.weight": ...}`.

    Returns:
        A state dict for transformers' `DeepseekV4DecoderLayer`.
    """
    back = {original: hf for hf, original in _LAYER.items()}
    state = {back[name]: tensor for name, tensor in block.items() if ".experts." not in name}
    count = sum(name.endswith(".w2.weight") and ".experts." in name for name in block)
    experts = [
        [block[f"ffn.experts.{expert}.w{part}.weight"] for part in (1, 3, 2)]
        for expert in range(count)
    ]
    state["mlp.experts.gate_up_proj"] = torch.stack([torch.cat(e[:2]) for e in experts])
    state["mlp.experts.down_proj"] = torch.stack([e[2] for e in experts])
    return state


def is_control_tensor(name: str) -> bool:
    """Tell whether published checkpoints keep this original name in float32 whatever the dtype."""
    leaf = name.rsplit(".", 1)[-1]
    return leaf.startswith("hc_") or leaf in ("attn_sink", "ape") or name.endswith("gate.bias")
