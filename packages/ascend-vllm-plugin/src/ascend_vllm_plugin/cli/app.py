"""The `ascend-vllm` command: its options and how results are shown. The work is in the modules."""

from __future__ import annotations

import dataclasses
import json
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ascend_vllm_plugin.cli import demo as demo_module
from ascend_vllm_plugin.cli.check_model import check_model
from ascend_vllm_plugin.cli.doctor import examine
from ascend_vllm_plugin.cli.doctor_hccl import needed_buffer
from ascend_vllm_plugin.cli.environment import Facts, collect
from ascend_vllm_plugin.cli.matrix import PLUGIN_DIST
from ascend_vllm_plugin.cli.ops import ops
from ascend_vllm_plugin.cli.plan import plan
from ascend_vllm_plugin.cli.server import ServerError
from ascend_vllm_plugin.cli.stream import CompletionError
from ascend_vllm_plugin.cli.verdict import Level, Verdict, worst

COLOURS = {
    Level.OK: "green",
    Level.INFO: "cyan",
    Level.WARNING: "yellow",
    Level.PROBLEM: "red",
}
CONCLUSIONS = {
    Level.OK: "Nothing to do: this environment is the tested one.",
    Level.WARNING: "This should work; the warnings say where it differs from what was tested.",
    Level.PROBLEM: "Something here will not work; the remedies say what to do.",
}

app = typer.Typer(
    name="ascend-vllm",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Serve DeepSeek, GLM-5, MiniMax-M3 and Kimi models with vLLM: on this machine's CPU, or on "
        "Ascend NPUs.\n\n"
        "New here? Run **ascend-vllm doctor** to see whether everything fits together, then "
        "**ascend-vllm demo** to watch a small model write text. Before serving a model of your "
        "own, **ascend-vllm check-model** says whether it is complete and **ascend-vllm plan** "
        "whether it fits. None of them needs an NPU. The NPU path is tested on a simulated device; "
        "it was not run on hardware."
    ),
)


class Dtype(StrEnum):
    """Number format of weights and activations."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


def _version() -> str:
    try:
        return version(PLUGIN_DIST)
    except PackageNotFoundError:
        return "not installed (running from source)"


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"{PLUGIN_DIST} {_version()}")
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            callback=_show_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    pass


@app.command()
def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of lines.")
    ] = False,
    model: Annotated[
        Path | None,
        typer.Option(
            help="Also compare HCCL's buffer with what this model asks for: a directory or a "
            "config.json. The options below say how it is to be served."
        ),
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="Cards that split every layer.")] = 1,
    dp: Annotated[int, typer.Option(min=1, help="Replicas.")] = 1,
    ep: Annotated[
        int, typer.Option(min=1, help="Cards that share the experts out: tp x dp, or 1.")
    ] = 1,
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a step.")] = 2048,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Requests of a step.")] = 128,
) -> None:
    """Check this environment: a verdict a line, and a remedy for all that is wrong.

    Compares what is installed with the versions that were tested, says which device vLLM would
    use or why not, and which platform plugin it would pick. Changes nothing and takes seconds.
    The exit code is 0 unless there is a problem.
    """
    needed = None
    if model is not None:
        needed = needed_buffer(model, tp, dp, ep, max_num_batched_tokens, max_num_seqs)
    facts = collect()
    verdicts = examine(facts, needed)
    if as_json:
        typer.echo(json.dumps(_as_json(facts, verdicts), indent=2))
    else:
        _print_verdicts(verdicts, Console())
    raise typer.Exit(1 if worst(verdicts) is Level.PROBLEM else 0)


@app.command()
def demo(
    model: Annotated[
        Path | None,
        typer.Option(
            help="Checkpoint directory to serve instead of the packaged model.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    prompt: Annotated[str, typer.Option(help="Text to continue.")] = demo_module.DEFAULT_PROMPT,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest continuation, in tokens.")] = 200,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0 always takes the likeliest token.")
    ] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Repeat a continuation at temperature > 0.")] = (
        None
    ),
    dtype: Annotated[
        Dtype, typer.Option(help="Number format of weights and activations.")
    ] = Dtype.FLOAT32,
    speculative_tokens: Annotated[
        int,
        typer.Option(
            "--speculative-tokens",
            "-k",
            min=1,
            max=3,
            help="Tokens the MTP layer drafts a step.",
        ),
    ] = 2,
    speculation: Annotated[
        bool,
        typer.Option("--speculation/--no-speculation", help="Draft tokens with MTP, or not."),
    ] = True,
    max_model_len: Annotated[
        int, typer.Option(min=1, help="Longest request, prompt and answer, in tokens.")
    ] = 1024,
    kv_cache_memory_bytes: Annotated[
        int, typer.Option(min=1, help="Memory for the key/value caches, in bytes.")
    ] = 256 * 1024**2,
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one."),
    ] = 0,
    startup_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds to wait for the server.")
    ] = 600,
    log: Annotated[
        Path | None,
        typer.Option(help="File for the server's output (default: a new temporary file)."),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Leave the server running, and say how to use it."),
    ] = False,
) -> None:
    """Serve a tiny DeepSeek-V4 with the real vLLM and watch it write.

    The model ships with this package; nothing is downloaded. The demo starts `vllm serve` on
    127.0.0.1 (1 to 4 minutes on two cores), streams a continuation of the prompt, and tells the
    speed, how many drafted tokens were accepted, and which device did the work. The server is
    ended afterwards, also on Ctrl-C.
    """
    options = demo_module.DemoOptions(
        model=model,
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        dtype=dtype.value,
        speculative_tokens=speculative_tokens if speculation else 0,
        max_model_len=max_model_len,
        kv_cache_memory_bytes=kv_cache_memory_bytes,
        port=port,
        startup_timeout=startup_timeout,
        log=log,
        keep=keep,
    )
    try:
        demo_module.run(options, Console())
    except (demo_module.DemoError, ServerError, CompletionError) as error:
        Console(stderr=True).print(
            f"error: {error}",
            markup=False,
            highlight=False,
            soft_wrap=True,
            style="red",
        )
        raise typer.Exit(1) from None


app.command()(plan)
app.command()(check_model)
app.command()(ops)


def main() -> None:
    """Entry point of the console script `ascend-vllm`."""
    app()


def _print_verdicts(verdicts: list[Verdict], console: Console) -> None:
    width = max(len(verdict.check) for verdict in verdicts)
    for verdict in verdicts:
        level = f"[{COLOURS[verdict.level]}]{verdict.level.value:<7}[/]"
        line = f"{level}  {verdict.check:<{width}}  {escape(verdict.found)}"
        console.print(line, highlight=False, soft_wrap=True)
        if verdict.remedy:
            remedy = f"{'':7}  {'':{width}}  remedy: {verdict.remedy}"
            console.print(remedy, markup=False, highlight=False, soft_wrap=True)
    console.print(f"\n{CONCLUSIONS[worst(verdicts)]}")


def _as_json(facts: Facts, verdicts: list[Verdict]) -> dict[str, object]:
    return {
        "verdict": worst(verdicts).value,
        "version": _version(),
        "python": facts.python,
        "system": facts.system,
        "checks": [dataclasses.asdict(verdict) for verdict in verdicts],
    }
