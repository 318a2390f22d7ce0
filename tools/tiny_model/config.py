"""Shape of the demo model, in the keys of original DeepSeek-V4 configurations."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch


def _default_rope_scaling() -> dict[str, Any]:
    return {
        "type": "yarn",
        "factor": 4,
        "original_max_position_embeddings": 512,
        "beta_fast": 32,
        "beta_slow": 1,
    }


@dataclass(frozen=True)
class TinyConfig:
    """Sizes of a small DeepSeek-V4; field names are the keys of an original ``config.json``.

    ``compress_ratios`` has one entry per decoder layer and one per MTP layer (always 0).
    """

    vocab_size: int = 1024
    hidden_size: int = 128
    num_hidden_layers: int = 6
    num_nextn_predict_layers: int = 1
    compress_ratios: tuple[int, ...] = (0, 4, 128, 4, 128, 0, 0)
    num_hash_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 1
    head_dim: int = 64
    qk_rope_head_dim: int = 16
    q_lora_rank: int = 64
    o_groups: int = 2
    o_lora_rank: int = 32
    sliding_window: int = 64
    index_n_heads: int = 8
    index_head_dim: int = 32
    index_topk: int = 16
    n_routed_experts: int = 8
    n_shared_experts: int = 1
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 96
    scoring_func: str = "sqrtsoftplus"
    topk_method: str = "noaux_tc"
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.5
    swiglu_limit: float = 10.0
    hidden_act: str = "silu"
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 20
    hc_eps: float = 1e-6
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    compress_rope_theta: float = 160000.0
    rope_scaling: dict[str, Any] = field(default_factory=_default_rope_scaling)
    attention_bias: bool = False
    attention_dropout: float = 0.0
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    use_cache: bool = True
    bos_token_id: int = 0
    eos_token_id: int = 1

    def __post_init__(self) -> None:
        wanted = self.num_hidden_layers + self.num_nextn_predict_layers
        if len(self.compress_ratios) != wanted:
            raise ValueError(
                f"compress_ratios has {len(self.compress_ratios)} entries, needs {wanted}: "
                "one per decoder layer and one per MTP layer"
            )
        if bad := set(self.compress_ratios) - {0, 4, 128}:
            raise ValueError(f"compress_ratios may hold 0, 4 and 128 only, not {sorted(bad)}")
        if any(self.compress_ratios[self.num_hidden_layers :]):
            raise ValueError("an MTP layer has a sliding window only: its compress ratio must be 0")
        if self.num_attention_heads % self.o_groups:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"o_groups ({self.o_groups})"
            )

    def to_json(self) -> dict[str, Any]:
        """The contents of ``config.json``."""
        return {
            "architectures": ["DeepseekV4ForCausalLM"],
            "model_type": "deepseek_v4",
            "torch_dtype": "bfloat16",
            **dataclasses.asdict(self),
            "compress_ratios": list(self.compress_ratios),
        }

    @classmethod
    def load(cls, directory: Path) -> TinyConfig:
        """Read ``config.json`` of a checkpoint directory."""
        raw = json.loads((directory / "config.json").read_text())
        names = {f.name for f in dataclasses.fields(cls)}
        known = {k: v for k, v in raw.items() if k in names}
        return cls(**{**known, "compress_ratios": tuple(raw["compress_ratios"])})


def rope_table(
    cfg: TinyConfig, length: int, compress: bool, stride: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine, each [length, qk_rope_head_dim / 2] float32, for positions 0, stride, ...

    Layers without a compressor use the plain base; the others use ``compress_rope_theta`` with
    YaRN's blend of interpolated and original frequencies (Peng et al., 2023), without the
    temperature factor.
    """
    dim = cfg.qk_rope_head_dim
    base = cfg.compress_rope_theta if compress else cfg.rope_theta
    freq = base ** -(torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if compress:
        s = cfg.rope_scaling
        span = s["original_max_position_embeddings"]

        def pair_turning(turns: float) -> float:
            return dim * math.log(span / (turns * 2 * math.pi)) / (2 * math.log(base))

        low = max(math.floor(pair_turning(s["beta_fast"])), 0)
        high = min(math.ceil(pair_turning(s["beta_slow"])), dim - 1)
        steps = torch.arange(dim // 2, dtype=torch.float32) - low
        stretched = (steps / max(high - low, 1e-3)).clamp(0, 1)
        freq = freq / s["factor"] * stretched + freq * (1 - stretched)
    angle = torch.arange(length, dtype=torch.float32)[:, None] * stride * freq
    return angle.cos(), angle.sin()
