"""`ascend-vllm plan`: where a card's memory would go, before anything is downloaded or started.

torch is imported when the command runs, so that the other commands start without it.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ascend_vllm_plugin.cli.torch_autoload import switch_autoload_off
from ascend_vllm_plugin.planning.hccl import VARIABLE, buffer_mib

if TYPE_CHECKING:
    from ascend_vllm_plugin.planning.drafts import Speculation
    from ascend_vllm_plugin.planning.weights import Layout

_GIB = 1024**3


def plan(
    model: Annotated[
        Path,
        typer.Option(
            help="Model directory, or its config.json alone. No weight is read: only config.json "
            "and the headers of safetensors files."
        ),
    ],
    device: Annotated[
        str,
        typer.Option(
            help="Kind of card: A2, A3, A5 or cpu. An A3 card counts as two devices, one for each "
            "die."
        ),
    ],
    cards: Annotated[
        int | None,
        typer.Option(min=1, help="Number of cards: tp x dp. Given alone, all of them are tp."),
    ] = None,
    tp: Annotated[
        int | None, typer.Option(min=1, help="Cards that split every layer (tensor parallel).")
    ] = None,
    dp: Annotated[
        int, typer.Option(min=1, help="Replicas that serve different requests (data parallel).")
    ] = 1,
    ep: Annotated[
        int,
        typer.Option(
            min=1,
            help="Cards that share the experts out (expert parallel): tp x dp, or 1 to slice every "
            "expert over the cards of a replica.",
        ),
    ] = 1,
    dcp: Annotated[
        int,
        typer.Option(
            min=1,
            help="Cards of a replica that share the caches of a context out (decode context "
            "parallel): a divisor of tp. Not for DeepSeek-V4.",
        ),
    ] = 1,
    redundant_experts: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Replicas of routed experts in each layer, balanced by load: the engine's "
            "num_redundant_experts. Default: not balanced.",
        ),
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of a request, prompt and answer. Default: the model's."),
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Requests of that length to hold at once, in all.")
    ] = 1,
    dtype: Annotated[
        str, typer.Option(help="auto, bfloat16, float16 or float32: the model's dtype.")
    ] = "auto",
    cache_dtype: Annotated[
        str,
        typer.Option(
            help="family: rows as the device keeps them (8-bit indexer keys, on A5 8-bit rows), or "
            "model: all in the model's dtype. The engine has the same switch in additional_config."
        ),
    ] = "family",
    kv_dtype: Annotated[
        str,
        typer.Option(
            help="auto, for the dtypes in which the device family keeps its caches, or model: all "
            "caches keep the model's."
        ),
    ] = "auto",
    weight_format: Annotated[
        str,
        typer.Option(
            help="How matrices are stored: auto (what the checkpoint says), model (unquantized), "
            "fp8, fp8-mxfp4 (4-bit experts), w8a8 (8-bit integers) or stored (layer by layer what "
            "the checkpoint says)."
        ),
    ] = "auto",
    block_size: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a block of the compressed caches.")
    ] = None,
    memory_gib: Annotated[
        float | None,
        typer.Option(help="Memory of a card in GiB. Needed for cpu and A5, whose size varies."),
    ] = None,
    gpu_memory_utilization: Annotated[
        float, typer.Option(help="Share of that memory that vLLM may use, NPU or not.")
    ] = 0.92,
    kv_cache_memory_bytes: Annotated[
        int | None,
        typer.Option(min=1, help="Memory of the caches. Default: all that is left."),
    ] = None,
    max_num_batched_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of a step, prompts included.")
    ] = 2048,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Requests of a step.")] = 128,
    speculative_tokens: Annotated[
        int,
        typer.Option("--speculative-tokens", "-k", min=0, help="Tokens that MTP drafts a step."),
    ] = 0,
    speculative_config: Annotated[
        str | None,
        typer.Option(
            help="The engine's speculative_config, a JSON object with method, "
            "num_speculative_tokens and, where there is one, the draft's directory as model. "
            "Instead of --speculative-tokens."
        ),
    ] = None,
    prefix_caching: Annotated[
        bool,
        typer.Option(
            "--enable-prefix-caching",
            help="Cache prefixes of models with recurrent states, as the engine does if asked; "
            "those of other models are cached anyway.",
        ),
    ] = False,
    async_scheduling: Annotated[
        bool, typer.Option(help="Schedule a step before the last one is settled, as vLLM does.")
    ] = True,
    graphs: Annotated[bool, typer.Option(help="Capture decode steps (never on a cpu).")] = True,
    capture_sizes: Annotated[
        str | None,
        typer.Option(
            help="Tokens of the steps to capture, for example 1,2,4,8: the engine's "
            "cudagraph_capture_sizes. Default: vLLM's own list."
        ),
    ] = None,
    hccl_buffsize: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"HCCL's buffer in MiB. Default: the variable {VARIABLE}, else HCCL's own.",
        ),
    ] = None,
    o_proj: Annotated[
        str,
        typer.Option(
            help="Variant of the output projection, as in additional_config: auto, plain, otp, "
            "olora_tp, or on A5 fp8, otp_fp8, olora_tp_fp8."
        ),
    ] = "auto",
    o_proj_tensor_parallel_size: Annotated[
        int,
        typer.Option(min=1, help="Replicas that share an output projection, as in there; 1: none."),
    ] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, sizes in bytes.")
    ] = False,
    file: Annotated[
        Path | None,
        typer.Option("--picture", help="Also draw the memory of a card: a .svg or .png file."),
    ] = None,
) -> None:
    """Plan a deployment: what a card's memory is used for, whether it fits, what to change.

    Shows the weights part by part after they are split, the kinds of cache and the blocks
    that vLLM makes of them, estimates of activations, graphs and communication buffers (each with
    how it was made), and the shortest prefix that is reused. Nothing is loaded and no NPU is
    needed; nothing was measured on one. The exit code is 0 if everything fits, 1 if it does not
    (the message names the largest context that does), 2 for a request that makes no sense.

    Example: ascend-vllm plan --model DIR --device A2 --cards 8 --ep 8 --weight-format w8a8
    """
    switch_autoload_off()
    from ascend_ops_core.checkpoint.table import CheckpointError
    from ascend_ops_core.errors import InvalidInputError

    from ascend_vllm_plugin.planning import picture, report
    from ascend_vllm_plugin.planning.plan import make_plan
    from ascend_vllm_plugin.planning.request import PlanRequest
    from ascend_vllm_plugin.planning.source import read_model

    try:
        drafted, draft = _speculation(speculative_config, speculative_tokens)
        request = PlanRequest(
            device=device,
            layout=_layout(cards, tp, dp, ep, dcp, redundant_experts),
            max_model_len=max_model_len,
            concurrency=concurrency,
            dtype=dtype,
            cache_dtype=cache_dtype,
            kv_dtype=kv_dtype,
            weight_format=weight_format,
            block_size=block_size,
            memory_bytes=_bytes(memory_gib),
            gpu_memory_utilization=gpu_memory_utilization,
            kv_cache_memory_bytes=kv_cache_memory_bytes,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            speculative_tokens=drafted,
            draft=draft,
            prefix_caching=prefix_caching,
            async_scheduling=async_scheduling,
            graphs=graphs,
            capture_sizes=_sizes(capture_sizes),
            hccl_buffer_mib=_buffer(hccl_buffsize),
            o_proj=o_proj,
            o_proj_tensor_parallel_size=o_proj_tensor_parallel_size,
        )
        made = make_plan(read_model(model), request)
        if file is not None:
            picture.draw(made, file)
    except (InvalidInputError, CheckpointError) as error:
        Console(stderr=True).print(
            f"error: {error}", markup=False, highlight=False, soft_wrap=True, style="red"
        )
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps(report.as_json(made), indent=2))
    else:
        report.show(made, Console())
    raise typer.Exit(0 if made.fits else 1)


def _speculation(text: str | None, tokens: int) -> tuple[int, Speculation | None]:
    """Drafted tokens of a step, and how they are drafted if not by MTP."""
    from ascend_ops_core.errors import InvalidInputError

    from ascend_vllm_plugin.planning.drafts import Speculation

    if text is None:
        return tokens, None
    if tokens:
        raise InvalidInputError(
            f"speculative_tokens={tokens} beside a speculative_config",
            "both say how many tokens are drafted",
            "Give one of them.",
        )
    given = Speculation.parse(text)
    return given.tokens, None if given.method == "mtp" else given


def _layout(
    cards: int | None, tp: int | None, dp: int, ep: int, dcp: int, redundant: int | None
) -> Layout:
    from ascend_ops_core.errors import InvalidInputError

    from ascend_vllm_plugin.planning.weights import Layout

    if tp is None:
        total = cards if cards is not None else dp
        if total % dp:
            raise InvalidInputError(
                f"cards={total}", f"dp={dp} replicas cannot share them evenly", "Change one."
            )
        tp = total // dp
    layout = Layout(tp, dp, ep, dcp, redundant)
    if cards is not None and layout.cards != cards:
        raise InvalidInputError(
            f"cards={cards}", f"tp={tp} x dp={dp} makes {layout.cards}", "Change one of them."
        )
    return layout


def _bytes(memory_gib: float | None) -> int | None:
    from ascend_ops_core.errors import InvalidInputError

    if memory_gib is None:
        return None
    if not math.isfinite(memory_gib):
        raise InvalidInputError(f"memory_gib={memory_gib}", "it is a size in GiB", "Correct it.")
    return int(memory_gib * _GIB)


def _sizes(text: str | None) -> tuple[int, ...] | None:
    from ascend_ops_core.errors import InvalidInputError

    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise InvalidInputError(
            f"capture_sizes={text!r}", "they are numbers of tokens", "Write 1,2,4 for example."
        )
    return tuple(int(part) for part in parts)


def _buffer(given: int | None) -> int:
    from ascend_ops_core.errors import InvalidInputError

    text = os.environ.get(VARIABLE)
    size = buffer_mib(text) if given is None else given
    if size is None:
        raise InvalidInputError(
            f"{VARIABLE}={text!r}", "it is a whole number of MiB", f"Unset {VARIABLE}."
        )
    return size
