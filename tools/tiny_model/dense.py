"""Tiny Llama and Qwen3 targets, trained on the demo model's stories with transformers' own classes.

They are what drafts are trained for and measured with. Their tokenizer is the demo model's, whose
token ids they share.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from tools.tiny_model.data import batches

log = logging.getLogger(__name__)

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")

_COMMON: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "rms_norm_eps": 1e-6,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": False},
    "qwen3": {"tie_word_embeddings": True},
}
"""What the config of each kind of target says beside what all say."""

_LAYER = (
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rope_parameters",
)


@dataclass(frozen=True)
class DenseRecipe:
    """How to train; the learning rate follows the share of ``minutes``, or of ``steps`` if given.

    ``short`` and ``long`` are the (rows, tokens) of the batches; every ``long_every``-th is long.
    ``scored`` batches of held-out stories say how good the result is.
    """

    minutes: float = 12.0
    steps: int | None = None
    seed: int = 1
    short: tuple[int, int] = (4, 256)
    long: tuple[int, int] = (2, 640)
    long_every: int = 3
    learning_rate: float = 3e-3
    weight_decay: float = 0.05
    scored: int = 8


@dataclass(frozen=True)
class Progress:
    """Where a training run is: steps made, tokens seen, minutes passed, and the share of all."""

    step: int
    seen: int
    minutes: float
    share: float


class Schedule:
    """Steps of a recipe: batches of text, with the learning rate set for each.

    Args:
        recipe: how long and how fast.
        tokenizer: of the batches.
        parameters: what is trained.
    """

    def __init__(
        self, recipe: DenseRecipe, tokenizer: Tokenizer, parameters: list[torch.nn.Parameter]
    ) -> None:
        self.recipe = recipe
        seed = 1000 * recipe.seed + 500
        self.short = batches(tokenizer, seed, *recipe.short)
        self.long = batches(tokenizer, seed + 50, *recipe.long)
        self.parameters = parameters
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": recipe.weight_decay},
            {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), foreach=True)
        self.progress = Progress(0, 0, 0.0, 0.0)

    def batches(self) -> Iterator[torch.Tensor]:
        """Token ids ``[rows, tokens]`` of one step after the other."""
        began, step, seen = time.monotonic(), 0, 0
        while True:
            minutes = (time.monotonic() - began) / 60
            share = step / self.recipe.steps if self.recipe.steps else minutes / self.recipe.minutes
            self.progress = Progress(step, seen, minutes, share)
            if share >= 1:
                return
            for group in self.optimizer.param_groups:
                group["lr"] = self._rate(share)
            ids = next(self.long if step % self.recipe.long_every == 0 else self.short)
            yield ids
            step, seen = step + 1, seen + ids.numel()

    def learn(self, loss: torch.Tensor) -> None:
        """Make one step of the optimizer."""
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        now = self.progress
        if now.step % 50 == 0:
            log.info("step %d (%.0f%%) loss %.3f", now.step, 100 * now.share, float(loss.detach()))

    def _rate(self, share: float) -> float:
        """Warm-up over 2 %, then flat, then linear to zero over the last 45 %."""
        return self.recipe.learning_rate * max(min(share / 0.02, 1.0, (1 - share) / 0.45), 0.0)


def next_token_loss(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the next token, in nats."""
    logits = model(input_ids=ids, use_cache=False).logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def new_target(kind: str) -> PreTrainedModel:
    """A target with fresh weights.

    Raises:
        ValueError: there is no such kind.
    """
    if kind not in SHAPES:
        raise ValueError(f"target {kind!r}: there are {', '.join(SHAPES)}; name one of them")
    config = AutoConfig.for_model(kind, **_COMMON, **SHAPES[kind])
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def layer_of_draft(target: PretrainedConfig) -> dict[str, Any]:
    """Sizes of a draft's attention and network, by their names in a config.

    They are the target's, or those of the small Llama for a target with layers of another kind.
    """
    if target.model_type in SHAPES:
        return {name: getattr(target, name) for name in _LAYER}
    return {name: _COMMON[name] for name in _LAYER}


def load_target(directory: Path) -> PreTrainedModel:
    """A target from its checkpoint, in float32, not to be trained; the demo's model is one too."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return model.eval().requires_grad_(False)


def tokenizer_of(directory: Path) -> Tokenizer:
    """The tokenizer of a checkpoint directory."""
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def held_out(tokenizer: Tokenizer, length: int = 512) -> Iterator[torch.Tensor]:
    """Batches of held-out stories, always the same ones."""
    return batches(tokenizer, seed=10_007, batch=4, length=length, held_out=True)


@torch.no_grad()
def held_out_loss(model: PreTrainedModel, tokenizer: Tokenizer, count: int) -> float:
    """Mean cross-entropy over ``count`` batches of held-out stories, nats a token."""
    rows = held_out(tokenizer)
    return sum(float(next_token_loss(model, next(rows))) for _ in range(count)) / count


def write_report(directory: Path, progress: Progress, **found: Any) -> None:
    """Write ``training.json``: what was trained for how long, and what was measured."""
    report = {
        "steps": progress.step,
        "training_tokens": progress.seen,
        "minutes": round(progress.minutes, 1),
        **found,
    }
    (directory / "training.json").write_text(json.dumps(report, indent=2) + "\n")
    log.info("wrote %s: %s", directory, report)


def train_target(kind: str, recipe: DenseRecipe, tokenizer_from: Path, out: Path) -> None:
    """Train a target and leave its checkpoint in bfloat16, and ``training.json``, in ``out``.

    Args:
        kind: of :data:`SHAPES`.
        recipe: how to train.
        tokenizer_from: checkpoint directory whose tokenizer is used and copied.
        out: directory, made if need be.

    Raises:
        ValueError: there is no such kind.
    """
    torch.manual_seed(recipe.seed)
    model = new_target(kind).train()
    tokenizer = tokenizer_of(tokenizer_from)
    schedule = Schedule(recipe, tokenizer, list(model.parameters()))
    for ids in schedule.batches():
        schedule.learn(next_token_loss(model, ids))
    model.to(torch.bfloat16).save_pretrained(out)
    for name in TOKENIZER_FILES:
        given, copy = tokenizer_from / name, out / name
        # A link to the very file, as in checkpoints/, stays.
        if not (copy.exists() and copy.samefile(given)):
            shutil.copyfile(given, copy)
    loss = held_out_loss(load_target(out), tokenizer, recipe.scored)
    write_report(out, schedule.progress, held_out_loss=round(loss, 4))
