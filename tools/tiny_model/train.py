"""Trains the demo model on two single-threaded processes and writes the checkpoint.

Two processes with one thread each, averaging gradients, are faster here than two threads: the
model is made of thousands of small operations, for which waking a second thread costs more than
it brings.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tokenizers import Tokenizer

from tools.tiny_model import checkpoint, hyper
from tools.tiny_model.config import TinyConfig
from tools.tiny_model.data import balanced_hash_table, batches, save_tokenizer, train_tokenizer
from tools.tiny_model.model import TinyDeepseekV4

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recipe:
    """How to train.

    The learning rate follows the share of ``minutes`` that has passed, or of ``steps`` if that is
    given (then the result depends on nothing but the seed and the machine's arithmetic).
    ``start`` is a checkpoint directory to go on from; its tokenizer and hash tables are kept.
    ``short`` and ``long`` are the (rows per process, tokens) of the alternating batches; every
    ``long_every``-th batch is long, so that 128-token pools and the top-k choice matter.
    """

    minutes: float = 40.0
    steps: int | None = None
    seed: int = 1
    workers: int = 2
    short: tuple[int, int] = (4, 256)
    long: tuple[int, int] = (2, 640)
    long_every: int = 3
    learning_rate: float = 3e-3
    weight_decay: float = 0.05
    mtp_weight: float = 0.3
    select_from: float = 0.25
    balance_rate: float = 2e-3
    export_minutes: float = 4.0
    compile: bool = True
    start: Path | None = None


@dataclass(frozen=True)
class Scores:
    """What was measured on held-out stories: cross-entropies in nats a token, agreement in [0, 1].

    ``mtp_agreement`` is how often the MTP layer's first choice for a token equals the model's own,
    given the same text: the acceptance rate of greedy speculative decoding with one draft token.
    """

    loss: float
    mtp_loss: float
    accuracy: float
    mtp_agreement: float
    tokens: int


def losses(
    model: TinyDeepseekV4, ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cross-entropy of the next token, of the MTP layer, and the indexers' divergence."""
    out = model(ids)
    main = F.cross_entropy(out.main[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    mtp = F.cross_entropy(out.mtp[:, :-1].flatten(0, 1), ids[:, 2:].flatten())
    index = [a.index_loss for a in model.attentions() if a.index_loss is not None]
    return main, mtp, torch.stack(index).sum() if index else main.new_zeros(())


@torch.no_grad()
def evaluate(model: TinyDeepseekV4, rows: Iterator[torch.Tensor], count: int) -> Scores:
    """Score ``count`` batches."""
    was_training = model.training
    model.eval()
    totals = torch.zeros(4, dtype=torch.float64)
    tokens = 0
    for _ in range(count):
        ids = next(rows)
        out = model(ids)
        main, mtp, target = out.main[:, 1:-1], out.mtp[:, :-1], ids[:, 2:]
        n = target.numel()
        best = main.argmax(-1)
        values = (
            F.cross_entropy(main.flatten(0, 1), target.flatten()) * n,
            F.cross_entropy(mtp.flatten(0, 1), target.flatten()) * n,
            (best == target).sum(),
            (best == mtp.argmax(-1)).sum(),
        )
        totals += torch.stack([v.double() for v in values])
        tokens += n
    model.train(was_training)
    loss, mtp_loss, accuracy, agreement = (totals / tokens).tolist()
    return Scores(loss, mtp_loss, accuracy, agreement, tokens)


def held_out_rows(tokenizer: Tokenizer, length: int = 512) -> Iterator[torch.Tensor]:
    """Batches of held-out stories, always the same ones."""
    return batches(tokenizer, seed=10_007, batch=4, length=length, held_out=True)


def _optimizer(model: TinyDeepseekV4, recipe: Recipe) -> torch.optim.Optimizer:
    matrices = [p for n, p in model.named_parameters() if p.ndim > 1 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim == 1 or "embed" in n]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), foreach=True)


def _learning_rate(recipe: Recipe, progress: float) -> float:
    """Warm-up over 2 %, then flat, then linear to zero over the last 45 %."""
    warm = min(progress / 0.02, 1.0)
    decay = min((1.0 - progress) / 0.45, 1.0)
    return recipe.learning_rate * max(min(warm, decay), 0.0)


def _average(model: TinyDeepseekV4, workers: int) -> None:
    """Average gradients and expert loads over the processes."""
    if workers == 1:
        return
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    loads = [moe.load for moe in model.moes()]
    flat = torch.cat([t.flatten() for t in (*grads, *loads)])
    dist.all_reduce(flat)
    flat /= workers
    offset = 0
    for t in (*grads, *loads):
        t.copy_(flat[offset : offset + t.numel()].view_as(t))
        offset += t.numel()


def _balance(model: TinyDeepseekV4, rate: float) -> None:
    """Raise the selection bias of experts with less than their share, lower it for the others."""
    for moe in model.moes():
        if not moe.gate.hashed:
            moe.gate.bias += rate * torch.sign(moe.load.mean() - moe.load)


def _worker(rank: int, recipe: Recipe, cfg: TinyConfig, out: Path) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)
    if recipe.workers > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{out / 'rendezvous'}",
            rank=rank,
            world_size=recipe.workers,
        )
    if recipe.compile:
        hyper.compile_kernels()
    torch.manual_seed(recipe.seed)
    if recipe.start:
        tokenizer = Tokenizer.from_file(str(recipe.start / "tokenizer.json"))
        model = checkpoint.load(recipe.start).train()
        cfg = model.cfg
    else:
        tokenizer = train_tokenizer(cfg.vocab_size, recipe.seed)
        model = TinyDeepseekV4(cfg)
        table = balanced_hash_table(tokenizer, cfg, recipe.seed)
        for moe in model.moes():
            if moe.gate.hashed:
                moe.gate.tid2eid.copy_(table)
    if rank == 0:
        save_tokenizer(tokenizer, cfg, out)
    _loop(model, tokenizer, recipe, rank, out)
    if recipe.workers > 1:
        dist.destroy_process_group()


def _loop(
    model: TinyDeepseekV4, tokenizer: Tokenizer, recipe: Recipe, rank: int, out: Path
) -> None:
    optimizer = _optimizer(model, recipe)
    data_seed = 1000 * recipe.seed + 100 + rank
    short = batches(tokenizer, data_seed, *recipe.short)
    long = batches(tokenizer, data_seed + 50, *recipe.long)
    began = exported = time.monotonic()
    step = seen = 0
    while True:
        passed = time.monotonic() - began
        progress = step / recipe.steps if recipe.steps else passed / (60 * recipe.minutes)
        if recipe.workers > 1:
            agreed = torch.tensor(progress)
            dist.broadcast(agreed, src=0)
            progress = float(agreed)
        if progress >= 1:
            break
        rate = _learning_rate(recipe, progress)
        for group in optimizer.param_groups:
            group["lr"] = rate
        for attention in model.attentions():
            attention.select = recipe.start is not None or progress >= recipe.select_from
        ids = next(long if step % recipe.long_every == 0 else short)
        main, mtp, index = losses(model, ids)
        (main + recipe.mtp_weight * mtp + index).backward()
        _average(model, recipe.workers)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        _balance(model, recipe.balance_rate * min(1.0, 2 * (1 - progress)))
        step += 1
        seen += ids.numel() * recipe.workers
        if rank == 0 and (step % 20 == 0 or step == 1):
            shown = [float(x.detach()) for x in (main, mtp, index)]
            speed = seen / (time.monotonic() - began)
            log.info(
                "step %d (%.0f%%) loss %.3f mtp %.3f index %.3f lr %.1e tok/s %.0f",
                *(step, 100 * progress, *shown, rate, speed),
            )
        if rank == 0 and time.monotonic() - exported > 60 * recipe.export_minutes:
            exported = time.monotonic()
            _export(model, tokenizer, out, step, seen, (exported - began) / 60, batches_scored=4)
    if rank == 0:
        minutes = (time.monotonic() - began) / 60
        _export(model, tokenizer, out, step, seen, minutes, batches_scored=25)


def _export(
    model: TinyDeepseekV4,
    tokenizer: Tokenizer,
    out: Path,
    step: int,
    seen: int,
    minutes: float,
    batches_scored: int,
) -> None:
    checkpoint.save(model, out)
    stored = checkpoint.load(out)
    scores = evaluate(stored, held_out_rows(tokenizer), batches_scored)
    load = [[round(x, 3) for x in moe.load.tolist()] for moe in model.moes()]
    report = {
        "steps": step,
        "training_tokens": seen,
        "minutes": round(minutes, 1),
        "held_out": {k: round(v, 4) for k, v in vars(scores).items()},
        "expert_load": load,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    (out / "training.json").write_text(json.dumps(report, indent=2) + "\n")
    log.info("exported to %s: %s", out, report["held_out"])


def train(recipe: Recipe, cfg: TinyConfig, out: Path) -> None:
    """Train as ``recipe`` says and leave the checkpoint and ``training.json`` in ``out``."""
    if not math.isfinite(recipe.minutes) or recipe.minutes <= 0:
        raise ValueError(f"minutes is {recipe.minutes}; give a positive number")
    out.mkdir(parents=True, exist_ok=True)
    (out / "rendezvous").unlink(missing_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if recipe.workers == 1:
        _worker(0, recipe, cfg, out)
    else:
        torch.multiprocessing.spawn(
            _worker, args=(recipe, cfg, out.resolve()), nprocs=recipe.workers
        )
    (out / "rendezvous").unlink(missing_ok=True)
