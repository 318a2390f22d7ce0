"""A tiny DSpark draft for the demo's DeepSeek-V4, trained on the same stories.

The draft reads the target's averaged streams, its embedding and its head, which stay as they are.
Its layers begin as copies of the target's last one, which has a sliding window alone as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from ascend_models_deepseek.testing import Oracle
from ascend_models_deepseek.testing.dspark import (
    DenseDSpark,
    DSparkShape,
    load_dspark,
    write_dspark,
)
from ascend_models_deepseek.testing.dspark_oracle import DSparkOracle
from torch import nn

from tools.tiny_model.block_drafts import anchored, later_places_less
from tools.tiny_model.dense import DenseRecipe, Schedule, held_out, tokenizer_of, write_report

DRAFTS = 5
_CONFIDENCE_WEIGHT = 0.2


def new_dspark(target: Any) -> DenseDSpark:
    """A draft of a target of transformers."""
    config = target.config
    layers = config.num_hidden_layers
    shape = DSparkShape(
        (layers // 2 - 2, layers // 2, layers - 1),
        layers=2,
        markov_rank=32,
        noise_token=config.eos_token_id,
        block=DRAFTS,
    )
    draft = DenseDSpark(config, shape)
    last = target.model.layers[-1]
    for block in draft.blocks:
        block.load_state_dict(last.state_dict())
    draft.collapse.load_state_dict(target.model.hc_head.state_dict())
    draft.norm.load_state_dict(target.model.norm.state_dict())
    draft.main_norm.weight.data.fill_(1.0)
    nn.init.normal_(draft.markov_w1.weight, std=0.05)
    return draft


def dspark_loss(oracle: DSparkOracle, ids: torch.Tensor) -> torch.Tensor:
    """Mean loss of a batch's blocks; later places weigh less, since they are reached less often."""
    draft = oracle.draft
    starts, anchors, truth = anchored(ids, DRAFTS)
    with torch.no_grad():
        aux = oracle.aux(ids)
    hidden = draft.hidden(aux, anchors, starts, DRAFTS, oracle.embedding)
    before = torch.cat([anchors.unsqueeze(-1), truth[..., :-1]], dim=-1)
    logits = draft.logits(hidden, before, oracle.head)
    weights = later_places_less(truth)
    losses = F.cross_entropy(logits.flatten(0, 2), truth.flatten(), reduction="none")
    stands = (logits.argmax(-1) == truth).float()
    sure = draft.sure(hidden.detach(), before)
    doubt = F.binary_cross_entropy_with_logits(sure, stands)
    return (losses * weights.flatten()).sum() + _CONFIDENCE_WEIGHT * doubt


def dspark_acceptance(oracle: DSparkOracle, stories: Iterator[list[int]]) -> list[float]:
    """Share of rounds in which the draft at each place stood, over 12 greedy continuations."""
    rounds, accepted = 0, [0] * DRAFTS
    for _ in range(12):
        prompt = next(stories)[:48]
        said = oracle.say(prompt, 64)
        one = oracle.speculate(prompt, said, DRAFTS)
        rounds += one.rounds
        accepted = [a + b for a, b in zip(accepted, one.accepted, strict=True)]
    return [round(count / rounds, 3) for count in accepted]


def train_dspark(target_folder: Path, recipe: DenseRecipe, out: Path) -> None:
    """Train a draft and leave its checkpoint in bfloat16, and ``training.json``, in ``out``.

    Args:
        target_folder: checkpoint directory of a DeepSeek-V4.
        recipe: how to train.
        out: directory, made if need be.
    """
    torch.manual_seed(recipe.seed)
    target = Oracle(target_folder).model.requires_grad_(False)
    draft = new_dspark(target)
    tokenizer = tokenizer_of(target_folder)
    schedule = Schedule(recipe, tokenizer, list(draft.parameters()))
    oracle = DSparkOracle(target, draft)
    for ids in schedule.batches():
        schedule.learn(dspark_loss(oracle, ids))
    write_dspark(draft, target_folder, out, torch.bfloat16)
    stories = (story for rows in held_out(tokenizer, length=96) for story in rows.tolist())
    stored = DSparkOracle(target, load_dspark(target.config, out))
    found = dspark_acceptance(stored, stories)
    write_report(out, schedule.progress, accepted_at_each_place=found)
