"""Tiny Ling 2.5 checkpoints with random weights, and what runs them without vLLM.

transformers has no model of Ling 2.5: its ``bailing_hybrid`` is Ling 3, with delta rules. The rest
of Ling 2.5 is DeepSeek-V3, so here transformers' ``DeepseekV3ForCausalLM`` runs latent attention,
experts, norms and drafts, and its layers of lightning attention are replaced by the sum over
earlier tokens (Lightning Attention-2, arXiv 2401.04658, equation 2), in float64.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from ascend_models_deepseek.testing.oracle import AmbiguousPromptError, Greedy
from ascend_models_deepseek.testing.oracle_v3 import V3MtpOracle, V3Oracle
from ascend_models_deepseek.testing.tiny_v3 import published_names, randomise, v3_mtp_tensors
from ascend_ops_core.testing.language_models import random_prompt
from safetensors.torch import load_file, save_file
from torch import nn

__all__ = [
    "BAILING_SPECS",
    "BailingMtpOracle",
    "BailingOracle",
    "TinyBailingSpec",
    "write_bailing_checkpoint",
]


@dataclass(frozen=True)
class TinyBailingSpec:
    """Seed and shape of one checkpoint.

    Attributes:
        seed: of every random tensor.
        given: keys of its config beside those that all have.
        residual_gain: factor on the projections that write to the residual stream. Below one, the
            last token decides more of the next one, so drafts are right more often.
    """

    seed: int
    vocab_size: int = 300
    given: dict[str, Any] = field(default_factory=dict)
    residual_gain: float = 1.0

    def published_config(self) -> dict[str, Any]:
        """``config.json`` with the published keys."""
        return {
            "architectures": ["BailingMoeV2_5ForCausalLM"],
            "model_type": "bailing_hybrid",
            "vocab_size": self.vocab_size,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 4,
            "layer_group_size": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 16,
            "partial_rotary_factor": 0.5,
            "group_norm_size": 2,
            "linear_silu": False,
            "use_qk_norm": True,
            "use_bias": False,
            "use_qkv_bias": False,
            "q_lora_rank": 24,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 12,
            "num_experts": 8,
            "num_shared_experts": 1,
            "num_experts_per_tok": 2,
            "n_group": 4,
            "topk_group": 2,
            "moe_intermediate_size": 32,
            "first_k_dense_replace": 1,
            "moe_router_enable_expert_bias": True,
            "score_function": "sigmoid",
            "router_dtype": "fp32",
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "num_nextn_predict_layers": 0,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": False,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "torch_dtype": "float32",
        } | self.given


BAILING_SPECS: dict[str, TinyBailingSpec] = {
    "bailing": TinyBailingSpec(seed=51),
    "bailing_mtp": TinyBailingSpec(
        seed=52,
        residual_gain=0.3,
        given={
            "num_nextn_predict_layers": 1,
            "num_hidden_layers": 3,
            "layer_group_size": 3,
            "num_attention_heads": 6,
            "num_key_value_heads": 6,
            "group_norm_size": 1,
            "linear_silu": True,
            "use_qk_norm": False,
            "q_lora_rank": None,
            "num_shared_experts": 2,
            "first_k_dense_replace": 0,
        },
    ),
}
"""One layer of lightning attention for each of latent attention; two, in six heads, with drafts."""


class LightningSum(nn.Module):
    """Lightning attention with a layer's published parameters, by a sum over earlier tokens.

    Args:
        config: published keys.
        layer: number of the layer.
    """

    def __init__(self, config: dict[str, Any], layer: int) -> None:
        super().__init__()
        heads, width, hidden = (
            config[name] for name in ("num_attention_heads", "head_dim", "hidden_size")
        )
        self.heads, self.width, self.groups = heads, width, config["group_norm_size"]
        self.rotated = int(width * config["partial_rotary_factor"])
        self.silu, self.theta, self.eps = (
            config[name] for name in ("linear_silu", "rope_theta", "rms_norm_eps")
        )
        self.query_key_value = nn.Linear(hidden, 3 * heads * width, bias=False)
        self.g_proj = nn.Linear(hidden, heads * width, bias=False)
        self.dense = nn.Linear(heads * width, hidden, bias=False)
        self.g_norm = _Norm(heads * width)
        if config["use_qk_norm"]:
            self.query_layernorm, self.key_layernorm = _Norm(width), _Norm(width)
        factor = 1 - layer / (config["num_hidden_layers"] - 1) + 1e-5
        self.slopes = torch.tensor(_alibi(heads), dtype=torch.float64) * factor

    def forward(self, hidden_states: torch.Tensor, **unused: Any) -> tuple[torch.Tensor, None]:
        """``[1, T, H]``."""
        x = hidden_states[0]
        tokens = x.shape[0]
        qkv = self.query_key_value(x).double()
        qkv = nn.functional.silu(qkv) if self.silu else qkv
        query, key, value = qkv.view(tokens, 3, self.heads, self.width).unbind(1)
        if hasattr(self, "query_layernorm"):
            query = self._normed(query, self.query_layernorm)
            key = self._normed(key, self.key_layernorm)
        query, key = self._rotate(query), self._rotate(key)
        distance = torch.arange(tokens)[:, None] - torch.arange(tokens)
        decay = torch.exp(-self.slopes[:, None, None] * distance)
        scores = torch.einsum("ihd,jhd->hij", query, key) * self.width**-0.5 * decay
        mixed = torch.einsum("hij,jhd->ihd", scores.tril(), value).reshape(tokens, -1)
        grouped = mixed.view(tokens, self.groups, -1)
        grouped = grouped / (grouped.square().mean(-1, keepdim=True) + self.eps).sqrt()
        normed = grouped.flatten(1) * self.g_norm.weight.double()
        gated = normed * self.g_proj(x).double().sigmoid()
        return self.dense(gated.to(x.dtype))[None], None

    def _normed(self, x: torch.Tensor, norm: _Norm) -> torch.Tensor:
        scale = (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return x * scale * norm.weight.double()

    def _rotate(self, x: torch.Tensor) -> torch.Tensor:
        """Halves of the first channels of ``[T, h, D]``."""
        half = self.rotated // 2
        frequency = self.theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(x.shape[0])[:, None, None] * frequency
        first, second, rest = x.split([half, half, self.width - 2 * half], dim=-1)
        turned = torch.complex(first, second) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([turned.real, turned.imag, rest], dim=-1)


class _Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))


def _alibi(heads: int) -> list[float]:
    """Slopes of ALiBi (arXiv 2108.12409, section 3), for any number of heads."""
    power = 1 << (heads.bit_length() - 1)
    whole = [2.0 ** (-8 * (i + 1) / power) for i in range(power)]
    return whole + [2.0 ** (-8 * (i + 0.5) / power) for i in range(heads - power)]


def _is_linear(config: dict[str, Any], layer: int) -> bool:
    return (layer + 1) % config["layer_group_size"] != 0


def _empty_model(config: dict[str, Any]) -> Any:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    same = (
        "vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size",
        "num_hidden_layers", "num_attention_heads", "q_lora_rank", "kv_lora_rank",
        "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "num_experts_per_tok", "n_group",
        "topk_group", "routed_scaling_factor", "first_k_dense_replace", "norm_topk_prob",
        "rms_norm_eps", "rope_theta", "max_position_embeddings", "tie_word_embeddings",
    )  # fmt: skip
    given = DeepseekV3Config(
        **{name: config[name] for name in same},
        num_key_value_heads=config["num_attention_heads"],
        n_routed_experts=config["num_experts"],
        n_shared_experts=config["num_shared_experts"],
        num_nextn_predict_layers=config["num_nextn_predict_layers"],
        attn_implementation="eager",
    )
    model = DeepseekV3ForCausalLM(given).float().eval()
    for number, layer in enumerate(model.model.layers):
        if _is_linear(config, number):
            layer.self_attn = LightningSum(config, number)
    return model


# Of a published name and of transformers'; the published one of latent attention's output is
# "dense", as that of lightning attention's.
_RENAMED = (
    ("model.word_embeddings.", "model.embed_tokens."),
    (".mlp.gate.expert_bias", ".mlp.gate.e_score_correction_bias"),
    (".final_layernorm.", ".shared_head.norm."),
    (".attention.", ".self_attn."),
)


def _published(name: str) -> str:
    name = name.replace(".self_attn.o_proj.", ".self_attn.dense.")
    for theirs, ours in _RENAMED:
        name = name.replace(ours, theirs)
    return name


def _known(name: str, config: dict[str, Any]) -> str:
    for theirs, ours in _RENAMED:
        name = name.replace(theirs, ours)
    found = re.match(r"model\.layers\.(\d+)\.self_attn\.dense\.", name)
    drafts = found is not None and int(found[1]) >= config["num_hidden_layers"]
    if found is not None and (drafts or not _is_linear(config, int(found[1]))):
        name = name.replace(".self_attn.dense.", ".self_attn.o_proj.")
    return name


def write_bailing_checkpoint(
    spec: TinyBailingSpec, directory: Path, dtype: torch.dtype = torch.float32
) -> Path:
    """Write ``config.json`` and ``model.safetensors`` in published names."""
    directory.mkdir(parents=True, exist_ok=True)
    config = spec.published_config() | {"torch_dtype": str(dtype).removeprefix("torch.")}
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    model = _empty_model(config)
    randomise(model, spec.seed, spec.residual_gain)
    for layer in model.model.layers:
        if isinstance(layer.self_attn, LightningSum):
            layer.self_attn.dense.weight.data *= spec.residual_gain
    tensors = published_names(model.state_dict())
    if config["num_nextn_predict_layers"]:
        tensors |= v3_mtp_tensors("aligned", tensors, config["num_hidden_layers"], spec.seed)
    stored = {
        _published(name): one.to(torch.float32 if "bias" in name else dtype).contiguous()
        for name, one in tensors.items()
    }
    save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


class BailingOracle(V3Oracle):
    """A checkpoint folder in published names, run as this module says.

    Args:
        directory: folder with ``config.json`` and ``model.safetensors``.
        dtype: float32 (bfloat16 weights are then exact), or bfloat16 to see what rounding does; the
            sums of lightning attention are in float64 all the same.
    """

    def __init__(self, directory: str | Path, dtype: torch.dtype = torch.float32) -> None:
        self.directory = Path(directory)
        self.published = json.loads((self.directory / "config.json").read_text())
        self.model = _empty_model(self.published)
        draft = f"model.layers.{self.published['num_hidden_layers']}."
        stacked = _stacked(dict(self.tensors()))
        self.model.load_state_dict({n: one for n, one in stacked if not n.startswith(draft)})
        for one in self.model.parameters():
            one.data = one.data.to(dtype)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor of the checkpoint in float32, under its name in transformers."""
        for name, one in load_file(self.directory / "model.safetensors").items():
            yield _known(name, self.published), one.float()

    def greedy(self, prompt_ids: Sequence[int], count: int) -> Greedy:
        """Generate without a cache, of which lightning attention has none here."""
        tokens: list[int] = []
        rows: list[torch.Tensor] = []
        for _ in range(count):
            rows.append(self.logits([*prompt_ids, *tokens])[-1])
            tokens.append(int(rows[-1].argmax()))
        return Greedy(tokens, torch.stack(rows))

    def clear_prompt(self, length: int, count: int, seed: int = 0) -> list[int]:
        """Return a random prompt with which rounding decides no choice of a greedy run.

        Raises:
            AmbiguousPromptError: None of twenty prompts will do.
        """
        for attempt in range(20):
            vocab = self.model.config.vocab_size
            prompt = random_prompt(length, vocab, seed=seed + 1000 * attempt)
            try:
                self.clear_logits([*prompt, *self.greedy(prompt, count).tokens])
            except AmbiguousPromptError:
                continue
            return prompt
        raise AmbiguousPromptError(f"no clear prompt of {length} tokens from seed {seed}")


def _stacked(tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors with a layer's experts in two, as transformers has them."""
    experts: dict[str, dict[int, dict[str, torch.Tensor]]] = {}
    for name, one in tensors.items():
        found = re.fullmatch(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight", name)
        if found is None:
            yield name, one
        else:
            experts.setdefault(found[1], {}).setdefault(int(found[2]), {})[found[3]] = one
    for prefix, by_number in experts.items():
        part = [by_number[number] for number in sorted(by_number)]
        both = [torch.cat([one["gate"], one["up"]]) for one in part]
        yield f"{prefix}.gate_up_proj", torch.stack(both)
        yield f"{prefix}.down_proj", torch.stack([one["down"] for one in part])


class BailingMtpOracle(V3MtpOracle):
    """Greedy drafts of Ling 2.5's layer for multi-token prediction, by transformers' MtpLayer."""

    def stored(self) -> dict[str, torch.Tensor]:
        """The draft's tensors under the names that DeepSeek-V3's have."""
        target: Any = self.target
        prefix = f"model.layers.{target.published['num_hidden_layers']}."
        return {
            name.removeprefix(prefix): one
            for name, one in target.tensors()
            if name.startswith(prefix)
        }
