"""Command line: ``python -m tools.tiny_model train`` and ``... check``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
def check(
    directory: Annotated[Path, typer.Argument(help="Checkpoint directory.")] = CHECKPOINT,
) -> None:
    """Compare a checkpoint with transformers' DeepSeek-V4, score it, and print what it writes."""
    from tools.tiny_model.check import check as run_check

    typer.echo(run_check(directory).to_json())


if __name__ == "__main__":
    app()
