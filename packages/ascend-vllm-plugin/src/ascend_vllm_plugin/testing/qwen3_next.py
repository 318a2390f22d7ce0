"""Tiny Qwen3-Next checkpoints with random weights, made and run by transformers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from ascend_models_deepseek.testing.oracle import AmbiguousPromptError
from ascend_models_deepseek.testing.oracle_v3 import V3MtpOracle, V3Oracle
from ascend_models_deepseek.testing.tiny_v3 import randomise
from ascend_ops_core.testing.language_models import NarrowestGap, random_prompt
from safetensors.torch import load_file, save_file


@dataclass(frozen=True)
class TinyQwen3NextSpec:
    """Seed and shape of one checkpoint.

    Attributes:
        seed: of every random tensor.
        given: fields of its config beside those that all have.
        draft: there is a layer for multi-token prediction, as the published checkpoints have it.
        residual_gain: factor on the projections that write to the residual stream. Below one, the
            last token decides more of the next one, so drafts are right more often.
    """

    seed: int
    vocab_size: int = 300
    draft: bool = False
    residual_gain: float = 1.0
    given: dict[str, Any] = field(default_factory=dict)


QWEN3_NEXT_SPECS: dict[str, TinyQwen3NextSpec] = {
    "qwen3_next": TinyQwen3NextSpec(seed=41),
    "qwen3_next_odd": TinyQwen3NextSpec(
        seed=42,
        given={
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 9,
            "linear_key_head_dim": 24,
            "linear_value_head_dim": 20,
            "linear_conv_kernel_dim": 3,
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
            "norm_topk_prob": False,
        },
    ),
    "qwen3_next_mtp": TinyQwen3NextSpec(seed=43, draft=True, residual_gain=0.3),
}
"""Two value heads for a key head; three of them, widths that are no powers of two, three taps."""

_WRITERS = ("o_proj.weight", "out_proj.weight", "down_proj", "down_proj.weight")


def write_qwen3_next_checkpoint(
    spec: TinyQwen3NextSpec, directory: Path, dtype: torch.dtype = torch.float32
) -> Path:
    """Write `config.json` and `model.safetensors` for a spec."""
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    fields: dict[str, Any] = {
        "vocab_size": spec.vocab_size,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "partial_rotary_factor": 0.25,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "mlp_only_layers": [1],
        "max_position_embeddings": 2048,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    model = Qwen3NextForCausalLM(Qwen3NextConfig(**(fields | spec.given)))
    randomise(model, spec.seed, 1.0)
    new = torch.Generator().manual_seed(spec.seed)
    for name, tensor in model.named_parameters():
        noise = torch.randn(tensor.shape, generator=new)
        if name.endswith("A_log"):
            tensor.data = (0.2 + 4 * torch.rand(tensor.shape, generator=new)).log()
        elif name.endswith("dt_bias"):
            tensor.data = noise - 2
        elif name.endswith("conv1d.weight"):
            tensor.data = 0.5 * noise
        elif name.endswith("norm.weight") and "linear_attn" not in name:
            # These are stored less one.
            tensor.data = 0.1 * noise
        elif name.endswith(_WRITERS):
            tensor.data = spec.residual_gain * tensor.data
    model.to(dtype).save_pretrained(directory)
    if spec.draft:
        file = directory / "model.safetensors"
        tensors = load_file(file)
        save_file(tensors | _draft(tensors, model.config), file, metadata={"format": "pt"})
    return directory


def _draft(target: dict[str, torch.Tensor], config: Any) -> dict[str, torch.Tensor]:
    """A layer for multi-token prediction under its published names, made of the target's parts.

    It has the target's last layer with full attention, lets the next token's embedding through and
    adds little of the hidden state, so it is often right where the other layers matter little.
    """
    full = [i for i, kind in enumerate(config.layer_types) if kind == "full_attention"]
    source = f"model.layers.{full[-1]}."
    hidden, dtype = config.hidden_size, target["lm_head.weight"].dtype
    eye = torch.eye(hidden, dtype=dtype)
    made = {
        f"mtp.layers.0.{name.removeprefix(source)}": tensor.clone()
        for name, tensor in target.items()
        if name.startswith(source)
    }
    # Norms are stored less one.
    for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        made[f"mtp.{norm}.weight"] = torch.zeros(hidden, dtype=dtype)
    made["mtp.norm.weight"] = target["model.norm.weight"].clone()
    made["mtp.fc.weight"] = torch.cat([eye, 0.1 * eye], dim=1)
    return made


class Qwen3NextOracle(V3Oracle):
    """Qwen3-Next in transformers; its routers have no groups and no bias."""

    @contextmanager
    def watched(self) -> Iterator[NarrowestGap]:
        gap = NarrowestGap()
        routers = [m for m in self.model.modules() if type(m).__name__.endswith("TopKRouter")]
        hooks = [
            router.register_forward_hook(
                lambda r, _, out: gap.see(out[0].float().softmax(-1), r.top_k)
            )
            for router in routers
        ]
        try:
            yield gap
        finally:
            for handle in hooks:
                handle.remove()

    def clear_prompt(self, length: int, count: int, seed: int = 0) -> list[int]:
        """Return a random prompt with which rounding decides no choice of a greedy run.

        Raises:
            AmbiguousPromptError: None of twenty prompts will do.
        """
        for attempt in range(20):
            vocab = self.model.config.vocab_size
            prompt = random_prompt(length, vocab, seed=seed + 1000 * attempt)
            try:
                self.picked_logits(prompt, self.greedy(prompt, count + 1).tokens)
            except AmbiguousPromptError:
                continue
            return prompt
        raise AmbiguousPromptError(f"no clear prompt of {length} tokens from seed {seed}")


class Qwen3NextMtpOracle(V3MtpOracle):
    """Greedy drafts of the layer for multi-token prediction, from transformers' decoder layer.

    vLLM's ``Qwen3NextMTP`` takes the first position's embedding as it is.
    """

    masks_first = False

    def stored(self) -> dict[str, torch.Tensor]:
        """The draft's tensors under the names that DeepSeek-V3's have."""
        prefix, joint = (
            "mtp.layers.0.",
            {
                "mtp.pre_fc_norm_embedding.weight": "enorm.weight",
                "mtp.pre_fc_norm_hidden.weight": "hnorm.weight",
                "mtp.fc.weight": "eh_proj.weight",
                "mtp.norm.weight": "shared_head.norm.weight",
            },
        )
        file = self.target.directory / "model.safetensors"
        return {
            joint.get(name) or name.removeprefix(prefix): tensor.float()
            for name, tensor in load_file(file).items()
            if name in joint or name.startswith(prefix)
        }

    def draft_config(self, config: Any) -> Any:
        """The target's, whose first layer is one of the draft's kind."""
        made = copy.deepcopy(config)
        made.layer_types = ["full_attention", *config.layer_types[1:]]
        made.mlp_only_layers = []
        return made
