"""Medusa heads for the tiny targets: each guesses a further token from the target's last stream.

Cai et al., 2024, "Medusa: Simple LLM inference acceleration framework with multiple decoding
heads", section 2.1.1. Tensor names are those that vLLM's ``Medusa`` reads.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedModel

from tools.tiny_model.dense import (
    DenseRecipe,
    Schedule,
    held_out,
    load_target,
    tokenizer_of,
    write_report,
)

HEADS = 4


class Medusa(nn.Module):
    """``HEADS`` heads on the target's normed last stream.

    Args:
        target: whose output head each starts with.
    """

    def __init__(self, target: PreTrainedModel) -> None:
        super().__init__()
        width = target.config.hidden_size
        head = target.get_output_embeddings().weight
        self.blocks = nn.ParameterList(torch.zeros(width, width) for _ in range(HEADS))
        self.heads = nn.ParameterList(nn.Parameter(head.detach().clone()) for _ in range(HEADS))

    def forward(self, hidden: torch.Tensor) -> list[torch.Tensor]:
        """Logits of each head, ``[..., V]``, from ``hidden [..., D]``."""
        outer = [hidden + F.silu(F.linear(hidden, block)) for block in self.blocks]
        return [F.linear(x, head) for x, head in zip(outer, self.heads, strict=True)]

    def tensors(self) -> dict[str, torch.Tensor]:
        """The checkpoint's tensors, in bfloat16."""
        out = {f"blocks.{i}.layers.0.weight": block for i, block in enumerate(self.blocks)}
        out |= {f"lm_heads.{i}.weight": head for i, head in enumerate(self.heads)}
        return {name: value.detach().to(torch.bfloat16) for name, value in out.items()}


@torch.no_grad()
def _of_target(target: PreTrainedModel, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out = target(input_ids=ids, use_cache=False, output_hidden_states=True)
    return out.hidden_states[-1], out.logits


@torch.no_grad()
def agreement(
    model: Medusa, target: PreTrainedModel, tokenizer: Tokenizer, count: int
) -> list[float]:
    """How often each head's token is the target's own choice, where the text was it so far."""
    rows = held_out(tokenizer)
    hits, tries = torch.zeros(HEADS), torch.zeros(HEADS)
    for _ in range(count):
        ids = next(rows)
        hidden, logits = _of_target(target, ids)
        choice = logits.argmax(dim=-1)
        alive = choice[:, :-1] == ids[:, 1:]
        for i, drafted in enumerate(model(hidden)):
            count = ids.shape[1] - 1 - i
            right = drafted.argmax(-1)[:, :count] == choice[:, 1 + i :]
            alive = alive[:, :count]
            if i:
                alive = alive & (choice[:, i : i + count] == ids[:, 1 + i :])
            hits[i] += (right & alive).sum()
            tries[i] += alive.sum()
            alive = alive & right
    return [round(float(h / t), 4) for h, t in zip(hits, tries, strict=True)]


def train_medusa(directory: Path, recipe: DenseRecipe, out: Path) -> None:
    """Train heads for the target in ``directory`` and leave their checkpoint in ``out``."""
    torch.manual_seed(recipe.seed)
    target, tokenizer = load_target(directory), tokenizer_of(directory)
    model = Medusa(target)
    schedule = Schedule(recipe, tokenizer, list(model.parameters()))
    for ids in schedule.batches():
        hidden, logits = _of_target(target, ids)
        wanted = logits.softmax(dim=-1)
        loss = hidden.new_zeros(())
        for i, drafted in enumerate(model(hidden)):
            kept = drafted[:, : ids.shape[1] - 1 - i].flatten(0, 1)
            loss = loss + 0.8**i * F.cross_entropy(kept, wanted[:, 1 + i :].flatten(0, 1))
        schedule.learn(loss)
    out.mkdir(parents=True, exist_ok=True)
    save_file(model.tensors(), out / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "dtype": "bfloat16",
        "hidden_size": target.config.hidden_size,
        "vocab_size": target.config.vocab_size,
        "num_heads": HEADS,
        "num_hidden_layers": 1,
    }
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_report(
        out, schedule.progress, agreement=agreement(model, target, tokenizer, recipe.scored)
    )
