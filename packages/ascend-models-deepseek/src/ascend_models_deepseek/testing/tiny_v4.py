"""Tiny DeepSeek-V4 checkpoints with random weights, in the original key and tensor names.

The weights come from transformers' own `DeepseekV4ForCausalLM`, so whatever reads the checkpoint is
compared with an implementation that this project did not write.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ascend_models_deepseek.testing.mtp_weights import MTP_MODES, mtp_tensors
from ascend_models_deepseek.testing.original_names import is_control_tensor, to_original


@dataclass(frozen=True)
class TinyV4Spec:
    """Seed and shape of one tiny checkpoint.

    Field names and units are those of the original DeepSeek-V4 `config.json`; sizes count elements,
    windows and ratios count tokens.

    Attributes:
        seed: Seed of every random tensor.
        compress_ratios: One of 0 (window only), 4 or 128 for each layer; sets the layer count.
        yarn: `(factor, original_max_position_embeddings, beta_fast, beta_slow)` of the compressed
            layers' RoPE, or None for plain RoPE there.
        mtp: "none" for no draft layer, "random" for a random one, "aligned" for one derived from
            the target's weights so that a part of its drafts is accepted.
        mtp_ratio_listed: Append the draft layer's 0 to `compress_ratios` in `config.json`.
        residual_gain: Factor on the projections that write to the residual streams. Below one, the
            last token decides more of the next one, so "aligned" drafts are right more often.
    """

    seed: int = 0
    compress_ratios: tuple[int, ...] = (0, 128, 4, 128, 4, 0)
    num_hash_layers: int = 2
    vocab_size: int = 512
    hidden_size: int = 128
    moe_intermediate_size: int = 64
    num_attention_heads: int = 8
    head_dim: int = 64
    qk_rope_head_dim: int = 16
    q_lora_rank: int = 64
    o_groups: int = 2
    o_lora_rank: int = 32
    n_routed_experts: int = 8
    num_experts_per_tok: int = 3
    routed_scaling_factor: float = 1.5
    swiglu_limit: float = 2.0
    sliding_window: int = 16
    index_n_heads: int = 16
    index_head_dim: int = 32
    index_topk: int = 8
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 20
    rope_theta: float = 10000.0
    compress_rope_theta: float = 160000.0
    yarn: tuple[float, int, float, float] | None = (16.0, 256, 32.0, 1.0)
    max_position_embeddings: int = 4096
    mtp: str = "none"
    mtp_ratio_listed: bool = False
    residual_gain: float = 1.0

    def __post_init__(self) -> None:
        """Reject a draft mode that does not exist (ValueError)."""
        if self.mtp not in MTP_MODES:
            raise ValueError(f"mtp={self.mtp!r} is unknown; use one of {', '.join(MTP_MODES)}")

    def original_config(self) -> dict[str, Any]:
        """Return `config.json` as the original checkpoints spell it."""
        ratios = list(self.compress_ratios)
        scaling = None
        if self.yarn is not None:
            factor, original, fast, slow = self.yarn
            scaling = {
                "type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": original,
                "beta_fast": fast,
                "beta_slow": slow,
            }
        not_in_config = (
            "seed",
            "compress_ratios",
            "yarn",
            "mtp",
            "mtp_ratio_listed",
            "residual_gain",
        )
        same_name = [f.name for f in fields(self) if f.name not in not_in_config]
        return {
            "architectures": ["DeepseekV4ForCausalLM"],
            "model_type": "deepseek_v4",
            **{name: getattr(self, name) for name in same_name},
            "num_hidden_layers": len(ratios),
            "compress_ratios": ratios + [0] * self.mtp_ratio_listed,
            "rope_scaling": scaling,
            "num_key_value_heads": 1,
            "n_shared_experts": 1,
            "scoring_func": "sqrtsoftplus",
            "norm_topk_prob": True,
            "topk_method": "noaux_tc",
            "hidden_act": "silu",
            "hc_eps": 1e-6,
            "rms_norm_eps": 1e-6,
            "num_nextn_predict_layers": int(self.mtp != "none"),
            "tie_word_embeddings": False,
            "attention_bias": False,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "torch_dtype": "float32",
        }


SPECS: dict[str, TinyV4Spec] = {
    "mixed": TinyV4Spec(seed=1, mtp="aligned", residual_gain=0.2),
    "wide_window": TinyV4Spec(
        seed=2,
        compress_ratios=(4, 128, 0, 4),
        num_hash_layers=0,
        vocab_size=500,
        hidden_size=96,
        moe_intermediate_size=48,
        num_attention_heads=12,
        head_dim=48,
        qk_rope_head_dim=8,
        q_lora_rank=40,
        o_groups=4,
        o_lora_rank=24,
        n_routed_experts=6,
        num_experts_per_tok=2,
        routed_scaling_factor=2.5,
        sliding_window=128,
        index_n_heads=17,
        index_head_dim=16,
        index_topk=12,
        hc_mult=2,
        hc_sinkhorn_iters=7,
        yarn=(4.0, 512, 16.0, 1.0),
        max_position_embeddings=2048,
    ),
    "tensor_parallel": TinyV4Spec(
        seed=3,
        compress_ratios=(0, 4, 128, 4),
        num_hash_layers=1,
        o_groups=4,
        mtp="random",
        mtp_ratio_listed=True,
    ),
}
"""The checkpoints that the test tiers share, by name; "tensor_parallel" divides by two."""


def write_checkpoint(
    spec: TinyV4Spec, directory: str | Path, dtype: torch.dtype = torch.float32
) -> Path:
    """Write `config.json` and `model.safetensors` for a spec.

    Args:
        spec: What to build.
        directory: Created when absent; existing files of the same names are replaced.
        dtype: float32 or bfloat16 for the matrices. Control tensors (mHC, sinks, position and
            router biases) stay float32, as in the published checkpoints, and ids stay int64.

    Returns:
        The directory as a path.

    Raises:
        ValueError: For another dtype.
    """
    if dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"dtype={dtype} is not supported; use torch.float32 or torch.bfloat16")
    from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    config = spec.original_config()
    config["torch_dtype"] = str(dtype).removeprefix("torch.")
    (path / "config.json").write_text(json.dumps(config, indent=1) + "\n")

    model = DeepseekV4ForCausalLM(DeepseekV4Config.from_pretrained(path)).float()
    randomise(model, spec)
    tensors = to_original(model.state_dict())
    tensors |= mtp_tensors(spec.mtp, tensors, len(spec.compress_ratios), spec.seed)
    stored = {
        name: tensor.contiguous()
        if is_control_tensor(name) or not tensor.is_floating_point()
        else tensor.to(dtype).contiguous()
        for name, tensor in tensors.items()
    }
    save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
    return path


@torch.no_grad()
def randomise(model: torch.nn.Module, spec: TinyV4Spec) -> None:
    """Fill a transformers model in place, deterministically and in name order.

    Matrices get a standard deviation of 1/sqrt(fan-in) so that activations keep their scale,
    biases and sinks one large enough to change the result when they are ignored.
    """
    generator = torch.Generator().manual_seed(spec.seed)
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    for name in sorted(named):
        tensor = named[name]
        if "inv_freq" in name:
            continue
        if name.endswith("tid2eid"):
            noise = torch.rand(tensor.shape[0], spec.n_routed_experts, generator=generator)
            tensor.copy_(noise.argsort(dim=-1)[:, : tensor.shape[1]])
            continue
        tensor.copy_(random_value(name, tensor.shape, generator, spec.residual_gain))


def random_value(
    name: str, shape: torch.Size, generator: torch.Generator, residual_gain: float
) -> torch.Tensor:
    """Draw one float tensor, at a scale chosen by the transformers parameter name."""
    noise = torch.randn(shape, generator=generator)
    if "embed_tokens" in name:
        return noise
    if name.endswith("e_score_correction_bias"):
        return 0.1 * noise
    if name.endswith(("sinks", "position_bias", ".base", "hc_base")):
        return 0.5 * noise
    if name.endswith((".scale", "hc_scale")):
        return 1 + 0.2 * noise
    if "norm" in name:
        return 1 + 0.1 * noise
    writes_residual = name.endswith(("o_b_proj.weight", "down_proj", "down_proj.weight"))
    return noise * (residual_gain if writes_residual else 1.0) / math.sqrt(shape[-1])
