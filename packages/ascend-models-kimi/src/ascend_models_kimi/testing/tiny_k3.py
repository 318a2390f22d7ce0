"""Tiny Kimi-K3 checkpoints with random weights, in the published key and tensor names.

transformers has no Kimi-K3, so the tensors are drawn by name and shape alone; what reads them is
compared with :mod:`ascend_models_kimi.testing.oracle_k3`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn.functional import pad

from ascend_models_kimi.testing.mxfp4 import pack_mxfp4
from ascend_models_kimi.testing.tiny_k3_shapes import PRE_NORMS, text_shapes, vision_shapes
from ascend_models_kimi.testing.tiny_kimi_linear import is_float32

MTP_MODES = ("none", "random", "aligned")
"""How draft layers are made: absent, random, or derived from the target's weights."""

TEXT_TOKENS = 490
"""Ids below this are text; those of images lie above."""


@dataclass(frozen=True)
class TinyK3Spec:
    """Seed and shape of one tiny checkpoint.

    Field names and units are those of the published `config.json`.

    Attributes:
        seed: Seed of every random tensor.
        kda_layers: Layers with delta attention, counted from one; the others have latent attention.
        mtp: One of `MTP_MODES`.
        quantized: Routed experts are stored as compressed-tensors' MXFP4.
        padded_decays: `A_log` has a value for every channel of a head, zeros behind the heads', as
            it was published; else it has four dimensions.
        residual_gain: Factor on the projections that write to the residual stream. Below one, the
            last token decides more of the next one, so "aligned" drafts are right more often.
    """

    seed: int = 0
    vocab_size: int = 512
    hidden_size: int = 96
    intermediate_size: int = 128
    moe_intermediate_size: int = 32
    num_hidden_layers: int = 5
    num_attention_heads: int = 4
    kv_lora_rank: int = 32
    q_lora_rank: int | None = 48
    qk_rope_head_dim: int = 8
    qk_nope_head_dim: int = 16
    v_head_dim: int = 24
    mla_use_output_gate: bool = True
    num_experts: int = 8
    num_experts_per_token: int = 3
    num_shared_experts: int = 1
    num_expert_group: int = 1
    topk_group: int = 1
    routed_scaling_factor: float = 2.446
    first_k_dense_replace: int = 1
    routed_expert_hidden_size: int | None = 64
    latent_moe_use_norm: bool = True
    activation_situ_beta: float = 2.0
    activation_situ_linear_beta: float | None = 3.0
    attn_res_block_size: int = 2
    kda_layers: tuple[int, ...] = (1, 2, 4, 5)
    kda_heads: int = 4
    kda_head_dim: int = 32
    conv_width: int = 4
    use_full_rank_gate: bool = True
    gate_lower_bound: float | None = -5.0
    logit_scale: float = 1.0
    mtp: str = "none"
    num_nextn_predict_layers: int = 1
    quantized: bool = False
    padded_decays: bool = True
    residual_gain: float = 1.0
    vt_hidden_size: int = 32
    vt_intermediate_size: int = 56
    vt_num_hidden_layers: int = 2
    vt_num_attention_heads: int = 2
    qkv_hidden_size: int = 48
    patch_size: int = 4
    init_pos_emb: int = 6

    def __post_init__(self) -> None:
        """Reject a draft mode that does not exist (ValueError)."""
        if self.mtp not in MTP_MODES:
            raise ValueError(f"mtp={self.mtp!r} is unknown; use one of {', '.join(MTP_MODES)}")

    @property
    def drafts(self) -> int:
        """Draft layers of the checkpoint."""
        return 0 if self.mtp == "none" else self.num_nextn_predict_layers

    def text_config(self) -> dict[str, Any]:
        """Return `text_config` as the published checkpoints spell it."""
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
            "mla_use_output_gate",
            "num_experts",
            "num_experts_per_token",
            "num_shared_experts",
            "num_expert_group",
            "topk_group",
            "routed_scaling_factor",
            "first_k_dense_replace",
            "routed_expert_hidden_size",
            "latent_moe_use_norm",
            "activation_situ_beta",
            "activation_situ_linear_beta",
            "attn_res_block_size",
            "logit_scale",
        )
        layers = range(1, self.num_hidden_layers + 1)
        config: dict[str, Any] = {
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
                "use_full_rank_gate": self.use_full_rank_gate,
                "gate_lower_bound": self.gate_lower_bound,
            },
            "mla_use_nope": True,
            "moe_layer_freq": 1,
            "moe_renormalize": True,
            "moe_router_activation_func": "sigmoid",
            "use_grouped_topk": True,
            "num_nextn_predict_layers": self.drafts,
            "hidden_act": "situ",
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": False,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 2,
        }
        if self.quantized:
            config["quantization_config"] = {
                "quant_method": "compressed-tensors",
                "format": "mxfp4-pack-quantized",
                "config_groups": {
                    "group_0": {
                        "format": "mxfp4-pack-quantized",
                        "targets": [r"re:.*block_sparse_moe\.experts\..*"],
                        "weights": {
                            "num_bits": 4,
                            "type": "float",
                            "strategy": "group",
                            "group_size": 32,
                            "symmetric": True,
                        },
                        "input_activations": None,
                    }
                },
                "ignore": ["lm_head"],
            }
        return config

    def published_config(self) -> dict[str, Any]:
        """Return `config.json` as the published checkpoints spell it."""
        return {
            "architectures": ["KimiK3ForConditionalGeneration"],
            "model_type": "kimi_k3",
            "text_config": self.text_config(),
            "vision_config": {
                "model_type": "kimi_k3_vision",
                "vt_hidden_size": self.vt_hidden_size,
                "vt_intermediate_size": self.vt_intermediate_size,
                "vt_num_hidden_layers": self.vt_num_hidden_layers,
                "vt_num_attention_heads": self.vt_num_attention_heads,
                "qkv_hidden_size": self.qkv_hidden_size,
                "patch_size": self.patch_size,
                "init_pos_emb_height": self.init_pos_emb,
                "init_pos_emb_width": self.init_pos_emb,
                "init_pos_emb_time": 4,
                "merge_kernel_size": [2, 2],
                "text_hidden_size": self.hidden_size,
            },
            "media_placeholder_token_id": 500,
            "image_placeholder": "<|kimi_image_placeholder|>",
            "pad_token_id": 2,
            "torch_dtype": "float32",
        }


K3_SPECS: dict[str, TinyK3Spec] = {
    "k3": TinyK3Spec(seed=41, mtp="aligned", residual_gain=0.3),
    "k3_mxfp4": TinyK3Spec(seed=41, quantized=True),
    # Everything that may be absent is, in odd sizes.
    "k3_odd": TinyK3Spec(
        seed=42,
        vocab_size=500,
        hidden_size=60,
        intermediate_size=36,
        moe_intermediate_size=24,
        num_hidden_layers=4,
        num_attention_heads=3,
        kv_lora_rank=20,
        q_lora_rank=None,
        qk_rope_head_dim=6,
        qk_nope_head_dim=10,
        v_head_dim=12,
        mla_use_output_gate=False,
        num_experts=6,
        num_experts_per_token=2,
        num_shared_experts=2,
        num_expert_group=3,
        topk_group=2,
        first_k_dense_replace=2,
        routed_expert_hidden_size=44,
        latent_moe_use_norm=False,
        activation_situ_linear_beta=None,
        attn_res_block_size=3,
        kda_layers=(2, 3),
        kda_heads=3,
        kda_head_dim=16,
        conv_width=3,
        use_full_rank_gate=False,
        gate_lower_bound=None,
        padded_decays=False,
        logit_scale=0.5,
    ),
}
"""The checkpoints that the test tiers share, by name; the first divides by two."""


def write_k3_checkpoint(
    spec: TinyK3Spec, directory: str | Path, dtype: torch.dtype = torch.float32
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
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    config = spec.published_config()
    config["torch_dtype"] = str(dtype).removeprefix("torch.")
    (path / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    stored: dict[str, torch.Tensor] = {}
    for name, tensor in k3_tensors(spec).items():
        stem, _, suffix = name.rpartition(".")
        if spec.quantized and ".experts." in name and suffix == "weight":
            stored[f"{stem}.weight_packed"], stored[f"{stem}.weight_scale"] = pack_mxfp4(tensor)
        else:
            kept = torch.float32 if is_float32(name) else dtype
            stored[name] = tensor.to(kept).contiguous()
    save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
    return path


def k3_tensors(spec: TinyK3Spec) -> dict[str, torch.Tensor]:
    """Return every tensor of the checkpoint in float32, before it is quantised."""
    generator = torch.Generator().manual_seed(spec.seed)
    text = {
        f"language_model.{name}": _random_value(name, shape, generator, spec.residual_gain)
        for name, shape in text_shapes(spec)
    }
    if spec.padded_decays:
        for name in [one for one in text if one.endswith("A_log")]:
            text[name] = pad(text[name].flatten(), (0, spec.kda_head_dim - spec.kda_heads))
    # A placeholder that the model itself generates would be taken for one of an image.
    text["language_model.lm_head.weight"][TEXT_TOKENS:] = 0
    vision = {
        name: _random_value(name, shape, generator, 1.0) for name, shape in vision_shapes(spec)
    }
    return text | _drafts(spec, text) | vision


def _random_value(
    name: str, shape: tuple[int, ...], generator: torch.Generator, residual_gain: float
) -> torch.Tensor:
    """Draw one float tensor, at a scale chosen by the parameter's name."""
    noise = torch.randn(shape, generator=generator)
    if name.endswith("A_log"):
        # Rates from 1 to 8, as the published initialisation of Kimi-Linear draws them.
        return (1 + 7 * torch.rand(shape, generator=generator)).log()
    if name.endswith("dt_bias"):
        # Decays that forget a token within ten to a hundred others.
        return noise - 4
    if "embed_tokens" in name or "pos_emb" in name:
        return noise
    if "conv1d" in name:
        return 0.5 * noise
    if name.endswith("bias"):
        return 0.1 * noise
    if "norm" in name:
        return 1 + 0.1 * noise
    if "res_proj" in name:
        # Logits of order one: sources are normed, so products with all channels add up.
        return 2 * noise / shape[-1] ** 0.5
    writes = name.endswith(("o_proj.weight", "down_proj.weight", "expert_up_proj.weight"))
    # The projection into the latent width is no writer, though it has such a name.
    writes = writes and not name.endswith("routed_expert_down_proj.weight")
    inputs = shape[-1] if len(shape) == 2 else shape[1] * shape[2] * shape[3]
    return (residual_gain if writes else 1.0) * noise / inputs**0.5


def _drafts(spec: TinyK3Spec, target: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Make the draft layers for a target, under their published names.

    "aligned" has the experts of the target's last layer and its latent attention, lets the next
    token's embedding through and adds little of the hidden state: the draft then sees what the
    target sees but for the other layers, and is often right where those matter little.
    """
    generator = torch.Generator().manual_seed(7919 * (spec.seed + 1))
    hidden, eye = spec.hidden_size, torch.eye(spec.hidden_size)
    root = "language_model.model.layers"
    latent = next(i for i in range(spec.num_hidden_layers) if i + 1 not in spec.kda_layers)
    last = spec.num_hidden_layers - 1
    made: dict[str, torch.Tensor] = {}
    for layer in range(last + 1, last + 1 + spec.drafts):
        own = f"{root}.{layer}."
        parts = {
            own + name.removeprefix(f"{root}.{source}."): tensor.clone()
            for source, kept in ((latent, "self_attn."), (last, "block_sparse_moe."))
            for name, tensor in target.items()
            if name.startswith(f"{root}.{source}.{kept}")
        }
        parts |= {f"{own}{norm}.weight": torch.ones(hidden) for norm in PRE_NORMS}
        parts |= {
            f"{own}enorm.weight": torch.ones(hidden),
            f"{own}hnorm.weight": torch.ones(hidden),
            f"{own}eh_proj.weight": torch.cat([eye, 0.1 * eye], dim=1),
            f"{own}embed_tokens.weight": target["language_model.model.embed_tokens.weight"].clone(),
            f"{own}shared_head.norm.weight": target["language_model.model.norm.weight"].clone(),
            f"{own}shared_head.head.weight": target["language_model.lm_head.weight"].clone(),
        }
        if spec.mtp == "random":
            shared = ("embed_tokens.weight", "shared_head.head.weight")
            parts = {
                name: tensor
                if name.endswith(shared)
                else _random_value(name, tuple(tensor.shape), generator, 1.0)
                for name, tensor in sorted(parts.items())
            }
        made |= parts
    return made
