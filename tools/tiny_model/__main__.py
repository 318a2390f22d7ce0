"""Command line: ``python -m tools.tiny_model`` trains and checks; see ``--help``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import torch
import typer

from tools.tiny_model.config import TinyConfig
from tools.tiny_model.train import Recipe
from tools.tiny_model.train import train as run_training

app = typer.Typer(no_args_is_help=True)
CHECKPOINT = Path("packages/ascend-vllm-plugin/src/ascend_vllm_plugin/data/tiny-deepseek-v4")


@app.callback()
def main() -> None:
    """Train and check the demo checkpoint, a small DeepSeek-V4 that tells stories."""


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="Directory for the checkpoint.")],
    minutes: Annotated[float, typer.Option(help="Time to train.")] = 40.0,
    steps: Annotated[
        int | None, typer.Option(help="Train this many steps instead of some minutes.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of stories and weights.")] = 1,
    start: Annotated[
        Path | None, typer.Option(help="Checkpoint to go on from, with a new --seed.")
    ] = None,
    learning_rate: Annotated[float, typer.Option(help="Peak of the learning rate.")] = 3e-3,
    workers: Annotated[int, typer.Option(help="Processes, one thread each.")] = 2,
    compile: Annotated[
        bool, typer.Option(help="Fuse the stream mixing with torch.compile (needs g++).")
    ] = True,
) -> None:
    """Train the demo model and write its checkpoint."""
    recipe = Recipe(
        minutes=minutes,
        steps=steps,
        seed=seed,
        learning_rate=learning_rate,
        workers=workers,
        compile=compile,
        start=start,
    )
    run_training(recipe, TinyConfig(), out)


@app.command()
def train_target(
    kind: Annotated[str, typer.Argument(help="llama or qwen3.")],
    out: Annotated[Path, typer.Option(help="Directory for the checkpoint.")],
    minutes: Annotated[float, typer.Option(help="Time to train.")] = 12.0,
    steps: Annotated[
        int | None, typer.Option(help="Train this many steps instead of some minutes.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of stories and weights.")] = 1,
) -> None:
    """Train a small Llama or Qwen3 on the same stories, on one thread, for drafts to follow."""
    from tools.tiny_model import dense

    _one_thread()
    dense.train_target(kind, dense.DenseRecipe(minutes, steps, seed), CHECKPOINT, out)


@app.command()
def train_draft(
    method: Annotated[
        str, typer.Argument(help="eagle3, medusa, dflash, dflash2, dspark or dspark-v4.")
    ],
    target: Annotated[Path, typer.Argument(help="Checkpoint directory of the target.")],
    out: Annotated[Path, typer.Option(help="Directory for the checkpoint.")],
    minutes: Annotated[float, typer.Option(help="Time to train.")] = 8.0,
    steps: Annotated[
        int | None, typer.Option(help="Train this many steps instead of some minutes.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of stories and weights.")] = 2,
) -> None:
    """Train a draft for a small Llama or Qwen3, or for the demo's model, on one thread."""
    from functools import partial

    from tools.tiny_model.block_drafts import train_block_draft
    from tools.tiny_model.dense import DenseRecipe
    from tools.tiny_model.dspark_v4 import train_dspark
    from tools.tiny_model.eagle3 import train_eagle3
    from tools.tiny_model.medusa import train_medusa

    _one_thread()
    train = {"eagle3": train_eagle3, "medusa": train_medusa, "dspark-v4": train_dspark}
    for kind in ("dflash", "dflash2", "dspark"):
        train[kind] = partial(train_block_draft, kind)
    if method not in train:
        raise typer.BadParameter(f"{method!r}: there are {', '.join(train)}; name one of them")
    train[method](target, DenseRecipe(minutes, steps, seed, short=(2, 256), long_every=4), out)


def _one_thread() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)


@app.command()
def check(
    directory: Annotated[Path, typer.Argument(help="Checkpoint directory.")] = CHECKPOINT,
) -> None:
    """Compare a checkpoint with transformers' DeepSeek-V4, score it, and print what it writes."""
    from tools.tiny_model.check import check as run_check

    typer.echo(run_check(directory).to_json())


if __name__ == "__main__":
    app()
