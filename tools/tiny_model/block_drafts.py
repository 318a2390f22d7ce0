"""Tiny block drafts (DFlash, DFlash2, DSpark) for a small target, trained on the same stories.

The draft reads the target's hidden states, embedding and head, which stay as they are. In every
story some places are taken as anchors, and the tokens behind each are what the block must say.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from ascend_specdec.testing.block_oracle import BlockOracle, load_draft, write_draft
from ascend_specdec.testing.dense_block_draft import DenseBlockDraft, DenseDraftConfig
from torch import nn

from tools.tiny_model.dense import (
    DenseRecipe,
    Schedule,
    held_out,
    layer_of_draft,
    load_target,
    tokenizer_of,
    write_report,
)

DRAFTS = 7
_ANCHORS = 24
_FIRST_ANCHOR = 4
_LATER_WEIGHT = 0.9


def new_draft(kind: str, target: Any) -> DenseBlockDraft:
    """A draft with fresh weights, of the target's width."""
    config = target.config
    layers, own = config.num_hidden_layers, layer_of_draft(config)
    end = config.eos_token_id
    return DenseBlockDraft(
        DenseDraftConfig(
            kind,
            target_layers=(0, layers // 2 - 1, layers - 2),
            hidden_size=config.hidden_size,
            target_hidden_size=config.hidden_size,
            intermediate_size=own["intermediate_size"],
            layers=2,
            heads=own["num_attention_heads"],
            key_heads=own["num_key_value_heads"],
            head_dim=own["head_dim"],
            vocab_size=config.vocab_size,
            mask_token=end if config.pad_token_id is None else config.pad_token_id,
            rope_theta=own["rope_parameters"]["rope_theta"],
            taps=3,
            group=16,
            rank=32,
            candidates=8,
            markov_rank=32,
        )
    )


def anchored(ids: torch.Tensor, drafts: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Positions ``[B, N]`` of anchors, their tokens, and what stands behind them ``[B, N, K]``."""
    rows, length = ids.shape
    starts = torch.randint(_FIRST_ANCHOR, length - drafts, (rows, _ANCHORS))
    row = torch.arange(rows).unsqueeze(1)
    behind = starts.unsqueeze(-1) + torch.arange(1, drafts + 1)
    return starts, ids[row, starts], ids[row.unsqueeze(-1), behind]


def later_places_less(truth: torch.Tensor) -> torch.Tensor:
    """Weights of the places ``truth [B, N, K]``, which sum to 1."""
    weights = (_LATER_WEIGHT ** torch.arange(truth.shape[-1])).expand(truth.shape)
    return weights / weights.sum()


def draft_loss(oracle: BlockOracle, ids: torch.Tensor) -> torch.Tensor:
    """Mean loss of a batch's blocks; later places weigh less, since they are reached less often."""
    draft = oracle.draft
    starts, anchors, truth = anchored(ids, DRAFTS)
    hidden = draft.hidden(oracle.aux(ids), anchors, starts, DRAFTS, oracle.embedding)
    logits = hidden @ oracle.head.T
    before = torch.cat([anchors.unsqueeze(-1), truth[..., :-1]], dim=-1)
    weights = later_places_less(truth)
    kind = draft.config.kind
    if kind == "dspark":
        logits = draft.markov(logits, before)
    losses = F.cross_entropy(logits.flatten(0, 2), truth.flatten(), reduction="none")
    loss = (losses * weights.flatten()).sum()
    if kind == "dflash2":
        candidates, scores = draft.scores(logits)
        edges = scores.detach() + draft.edge(hidden, before, candidates)
        right = candidates == truth.unsqueeze(-1)
        found = right.any(-1)
        chosen = F.cross_entropy(edges[found], right[found].int().argmax(-1), reduction="none")
        loss = loss + (chosen * weights[found]).sum()
    if kind == "dspark":
        read = torch.cat([hidden, draft.markov_head.markov_w1(before)], dim=-1).detach()
        sure = draft.confidence_head.proj(read).squeeze(-1)
        stands = (logits.argmax(-1) == truth).float()
        loss = loss + 0.2 * F.binary_cross_entropy_with_logits(sure, stands)
    return loss


def _stories(target_folder: Path) -> Iterator[list[int]]:
    for rows in held_out(tokenizer_of(target_folder), length=96):
        yield from rows.tolist()


def acceptance(target: Any, draft_folder: Path, stories: Iterator[list[int]]) -> list[float]:
    """Share of rounds in which the draft at each place stood, over 12 greedy continuations."""
    oracle = BlockOracle(target, load_draft(draft_folder))
    rounds, accepted = 0, [0] * DRAFTS
    for _ in range(12):
        prompt = next(stories)[:48]
        ids = torch.tensor([prompt])
        said = target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=64,
            do_sample=False,
            eos_token_id=None,
        )[0, len(prompt) :]
        one = oracle.speculate(prompt, said.tolist(), DRAFTS)
        rounds += one.rounds
        accepted = [a + b for a, b in zip(accepted, one.accepted, strict=True)]
    return [round(count / rounds, 3) for count in accepted]


def train_block_draft(kind: str, target_folder: Path, recipe: DenseRecipe, out: Path) -> None:
    """Train a draft and leave its checkpoint in bfloat16, and ``training.json``, in ``out``.

    Args:
        kind: ``"dflash"``, ``"dflash2"`` or ``"dspark"``.
        target_folder: checkpoint directory of the target.
        recipe: how to train.
        out: directory, made if need be.
    """
    torch.manual_seed(recipe.seed)
    target = load_target(target_folder)
    draft = new_draft(kind, target)
    for name, parameter in draft.named_parameters():
        if isinstance(draft.get_submodule(name.rpartition(".")[0]), nn.Embedding):
            nn.init.normal_(parameter, std=0.05)
    # The head expects what the target's last norm makes.
    draft.norm.weight.data.copy_(target.model.norm.weight)
    oracle = BlockOracle(target, draft)
    schedule = Schedule(recipe, tokenizer_of(target_folder), list(draft.parameters()))
    for ids in schedule.batches():
        schedule.learn(draft_loss(oracle, ids))
    write_draft(draft, out, torch.bfloat16)
    found = acceptance(target, out, _stories(target_folder))
    write_report(out, schedule.progress, accepted_at_each_place=found)
