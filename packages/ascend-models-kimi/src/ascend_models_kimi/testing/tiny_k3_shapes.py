"""Names and shapes of a tiny Kimi-K3 checkpoint's tensors, as the published ones have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ascend_models_kimi.testing.tiny_k3 import TinyK3Spec

__all__ = ["PRE_NORMS", "text_shapes", "vision_shapes"]

PRE_NORMS = ("input_layernorm", "post_attention_layernorm")
"""Norms in front of a layer's attention and of its network."""


def text_shapes(spec: TinyK3Spec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the text model's tensors without draft layers, below `language_model`."""
    hidden = spec.hidden_size
    yield "model.embed_tokens.weight", (spec.vocab_size, hidden)
    yield "lm_head.weight", (spec.vocab_size, hidden)
    yield "model.norm.weight", (hidden,)
    yield "model.output_attn_res_norm.weight", (hidden,)
    yield "model.output_attn_res_proj.weight", (1, hidden)
    for layer in range(spec.num_hidden_layers):
        name = f"model.layers.{layer}"
        for norm in (*PRE_NORMS, "self_attention_res_norm", "mlp_res_norm"):
            yield f"{name}.{norm}.weight", (hidden,)
        for proj in ("self_attention_res_proj", "mlp_res_proj"):
            yield f"{name}.{proj}.weight", (1, hidden)
        attention = _delta_shapes if layer + 1 in spec.kda_layers else _latent_shapes
        for part, shape in attention(spec):
            yield f"{name}.self_attn.{part}", shape
        if layer >= spec.first_k_dense_replace:
            for part, shape in _moe_shapes(spec):
                yield f"{name}.block_sparse_moe.{part}", shape
        else:
            for part, shape in _network_shapes(hidden, spec.intermediate_size):
                yield f"{name}.mlp.{part}", shape


def _delta_shapes(spec: TinyK3Spec) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, rank = spec.hidden_size, spec.kda_head_dim
    width = spec.kda_heads * rank
    for proj in "qkv":
        yield f"{proj}_proj.weight", (width, hidden)
        yield f"{proj}_conv1d.weight", (width, 1, spec.conv_width)
    for gate in ("f",) if spec.use_full_rank_gate else ("f", "g"):
        yield f"{gate}_a_proj.weight", (rank, hidden)
        yield f"{gate}_b_proj.weight", (width, rank)
    if spec.use_full_rank_gate:
        yield "g_proj.weight", (width, hidden)
    yield "b_proj.weight", (spec.kda_heads, hidden)
    yield "A_log", (1, 1, spec.kda_heads, 1)
    yield "dt_bias", (width,)
    yield "o_norm.weight", (rank,)
    yield "o_proj.weight", (hidden, width)


def _latent_shapes(spec: TinyK3Spec) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, heads, rank = spec.hidden_size, spec.num_attention_heads, spec.kv_lora_rank
    query = heads * (spec.qk_nope_head_dim + spec.qk_rope_head_dim)
    if spec.q_lora_rank is None:
        yield "q_proj.weight", (query, hidden)
    else:
        yield "q_a_proj.weight", (spec.q_lora_rank, hidden)
        yield "q_a_layernorm.weight", (spec.q_lora_rank,)
        yield "q_b_proj.weight", (query, spec.q_lora_rank)
    yield "kv_a_proj_with_mqa.weight", (rank + spec.qk_rope_head_dim, hidden)
    yield "kv_a_layernorm.weight", (rank,)
    yield "kv_b_proj.weight", (heads * (spec.qk_nope_head_dim + spec.v_head_dim), rank)
    if spec.mla_use_output_gate:
        yield "g_proj.weight", (heads * spec.v_head_dim, hidden)
    yield "o_proj.weight", (hidden, heads * spec.v_head_dim)


def _moe_shapes(spec: TinyK3Spec) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inter = spec.hidden_size, spec.moe_intermediate_size
    width = spec.routed_expert_hidden_size or hidden
    yield "gate.weight", (spec.num_experts, hidden)
    yield "gate.e_score_correction_bias", (spec.num_experts,)
    for expert in range(spec.num_experts):
        for tensor in ("w1", "w2", "w3"):
            rows, columns = (width, inter) if tensor == "w2" else (inter, width)
            yield f"experts.{expert}.{tensor}.weight", (rows, columns)
    for part, shape in _network_shapes(hidden, inter * spec.num_shared_experts):
        yield f"shared_experts.{part}", shape
    if spec.routed_expert_hidden_size is not None:
        yield "routed_expert_down_proj.weight", (width, hidden)
        yield "routed_expert_up_proj.weight", (hidden, width)
        if spec.latent_moe_use_norm:
            yield "routed_expert_norm.weight", (width,)


def _network_shapes(hidden: int, inter: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "gate_proj.weight", (inter, hidden)
    yield "up_proj.weight", (inter, hidden)
    yield "down_proj.weight", (hidden, inter)


def vision_shapes(spec: TinyK3Spec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the vision tower's and the projector's tensors."""
    hidden, side = spec.vt_hidden_size, spec.patch_size
    yield "vision_tower.patch_embed.proj.weight", (hidden, 3, side, side)
    yield "vision_tower.patch_embed.pos_emb.weight", (spec.init_pos_emb, spec.init_pos_emb, hidden)
    for layer in range(spec.vt_num_hidden_layers):
        name = f"vision_tower.encoder.blocks.{layer}"
        yield f"{name}.norm0.weight", (hidden,)
        yield f"{name}.norm1.weight", (hidden,)
        yield f"{name}.wqkv.weight", (3 * spec.qkv_hidden_size, hidden)
        yield f"{name}.wo.weight", (hidden, spec.qkv_hidden_size)
        yield f"{name}.mlp.fc0.weight", (spec.vt_intermediate_size, hidden)
        yield f"{name}.mlp.fc1.weight", (hidden, spec.vt_intermediate_size)
    yield "vision_tower.encoder.final_layernorm.weight", (hidden,)
    merged = 4 * hidden
    yield "mm_projector.proj.0.weight", (merged, merged)
    yield "mm_projector.proj.2.weight", (spec.hidden_size, merged)
    yield "mm_projector.post_norm.weight", (spec.hidden_size,)
