"""The doctor's look at HCCL's buffer: what is set, against what a model and layout ask for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

from ascend_vllm_plugin.cli.environment import Facts
from ascend_vllm_plugin.cli.torch_autoload import switch_autoload_off
from ascend_vllm_plugin.cli.verdict import Level, Verdict
from ascend_vllm_plugin.planning.hccl import DEFAULT_MIB, VARIABLE, buffer_mib


@dataclass(frozen=True, slots=True)
class NeededBuffer:
    """What a deployment asks for.

    mib: the buffer in MiB; 0 where nothing is exchanged.
    how: where the figure comes from.
    required: whether a smaller one fails, or is only slower.
    """

    mib: int
    how: str
    required: bool


def examine_hccl(facts: Facts, needed: NeededBuffer | None) -> Iterator[Verdict]:
    """Verdicts on the variable, and on its size where it is known what is needed."""
    text = facts.environ.get(VARIABLE)
    buffer = buffer_mib(text)
    if buffer is None:
        found = f"{VARIABLE}={text!r} is no whole number of MiB"
        yield Verdict(VARIABLE, Level.PROBLEM, found, f"unset {VARIABLE} ({DEFAULT_MIB} MiB then)")
        return
    origin = "HCCL's own, as it is unset" if text is None else "as set"
    if needed is None:
        if text is not None:
            found = f"{buffer} MiB, twice that in every communicator; --model compares with a need"
            yield Verdict(VARIABLE, Level.INFO, found)
    elif needed.mib <= buffer:
        found = f"{buffer} MiB ({origin}), {needed.mib} needed: {needed.how}"
        yield Verdict(VARIABLE, Level.OK, found)
    else:
        found = f"{buffer} MiB ({origin}), {needed.mib} needed: {needed.how}"
        level = Level.PROBLEM if needed.required else Level.WARNING
        yield Verdict(VARIABLE, level, found, f"export {VARIABLE}={needed.mib}")


def needed_buffer(
    model: Path, tp: int, dp: int, ep: int, max_num_batched_tokens: int, max_num_seqs: int
) -> NeededBuffer:
    """What serving `model` in this way asks for. Exits with a message if it cannot be told."""
    switch_autoload_off()
    from ascend_ops_core.errors import InvalidInputError

    from ascend_vllm_plugin.planning.estimates import Step, needed_hccl
    from ascend_vllm_plugin.planning.source import dtype_of, read_model, weight_format_of
    from ascend_vllm_plugin.planning.weights import Layout

    try:
        source = read_model(model)
        dtype = dtype_of(source.config, "auto", weight_format_of(source.config, "auto"))
        step = Step(max_num_batched_tokens, max_num_seqs)
        need = needed_hccl(source.spec, Layout(tp, dp, ep), dtype.itemsize, step)
    except InvalidInputError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    return NeededBuffer(need.mib, need.how, required=ep > 1)
