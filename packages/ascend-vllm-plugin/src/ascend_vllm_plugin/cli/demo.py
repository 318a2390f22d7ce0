"""`ascend-vllm demo`: serve the packaged tiny DeepSeek-V4 with the real vLLM and stream from it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.markup import escape

from ascend_vllm_plugin.cli.doctor import examine
from ascend_vllm_plugin.cli.environment import collect
from ascend_vllm_plugin.cli.matrix import PLUGIN_DIST
from ascend_vllm_plugin.cli.server import HOST, VllmServer, new_log, port_is_free
from ascend_vllm_plugin.cli.stream import Completion, stream_completion
from ascend_vllm_plugin.cli.verdict import Level, Verdict

SERVED_NAME = "tiny-deepseek-v4"
MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json")
# The doctor's checks without which the server cannot come up at all.
NEEDED_CHECKS = frozenset({"vllm", "VLLM_PLUGINS", "platform plugin", "model plugin", "npu"})
DEFAULT_PROMPT = "Once upon a time there was a curious rabbit called Mia."
WARM_UP_PROMPT = "Hello"
WARM_UP_TOKENS = 8
CPU_WORDS = "Everything ran on this machine's CPU with {kernels}; no NPU was used."


class DemoError(RuntimeError):
    """The demo cannot run as asked; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the user asked for. speculative_tokens: MTP draft tokens a step, 0 for none."""

    model: Path | None
    prompt: str
    max_tokens: int
    temperature: float
    seed: int | None
    dtype: str
    speculative_tokens: int
    max_model_len: int
    kv_cache_memory_bytes: int
    port: int
    startup_timeout: float
    log: Path | None
    keep: bool


def packaged_model() -> Path:
    """Directory of the checkpoint that ships with this package."""
    return Path(str(files("ascend_vllm_plugin"))) / "data" / SERVED_NAME


def find_model(chosen: Path | None) -> Path:
    """The checkpoint directory to serve; DemoError names every file that it lacks."""
    model = packaged_model() if chosen is None else chosen
    missing = [name for name in MODEL_FILES if not (model / name).is_file()]
    if not missing:
        return model
    remedy = (
        f"reinstall {PLUGIN_DIST}, or give another checkpoint with --model DIR"
        if chosen is None
        else "give --model a checkpoint directory that holds them"
    )
    raise DemoError(f"{model} has no {', '.join(missing)}: {remedy}")


def check_options(options: DemoOptions, model: Path) -> None:
    """DemoError for what can be known to fail before the server is started."""
    if not options.prompt:
        raise DemoError("the prompt is empty: give --prompt some text to continue")
    if options.max_tokens >= options.max_model_len:
        raise DemoError(
            f"{options.max_tokens} new tokens and a prompt do not fit into {options.max_model_len} "
            "tokens: lower --max-tokens or raise --max-model-len"
        )
    positions = json.loads((model / "config.json").read_text()).get("max_position_embeddings")
    if positions is not None and options.max_model_len > positions:
        raise DemoError(
            f"--max-model-len asks for {options.max_model_len} tokens, but the model's positions "
            f"end at {positions}: lower it to at most that"
        )
    if options.log is not None and not options.log.parent.is_dir():
        raise DemoError(f"--log: the directory {options.log.parent} does not exist: create it")
    if options.port and not port_is_free(options.port):
        raise DemoError(
            f"port {options.port} of {HOST} is in use: give another --port, or 0 for a free one"
        )


def serve_arguments(options: DemoOptions) -> list[str]:
    """The arguments of `vllm serve` after the model and the address."""
    arguments = [
        "--dtype",
        options.dtype,
        "--enforce-eager",
        "--max-model-len",
        str(options.max_model_len),
        "--kv-cache-memory-bytes",
        str(options.kv_cache_memory_bytes),
        "--max-num-seqs",
        "4",
    ]
    if options.speculative_tokens:
        speculation = {
            "method": "mtp",
            "num_speculative_tokens": options.speculative_tokens,
        }
        arguments += ["--speculative-config", json.dumps(speculation)]
    return arguments


def require_environment() -> None:
    """DemoError listing what the doctor finds that would keep the server from starting."""
    problems = [
        verdict
        for verdict in examine(collect())
        if verdict.level is Level.PROBLEM and verdict.check in NEEDED_CHECKS
    ]
    if problems:
        lines = [_line(verdict) for verdict in problems]
        raise DemoError("this environment cannot serve models:\n" + "\n".join(lines))


def run(options: DemoOptions, console: Console) -> None:
    """Serve, stream, report. Raises DemoError, ServerError or CompletionError."""
    require_environment()
    model = find_model(options.model)
    check_options(options, model)
    server = VllmServer(
        model,
        arguments=serve_arguments(options),
        served_name=SERVED_NAME,
        port=options.port,
        log=options.log or new_log("ascend-vllm-demo-"),
        environ={"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
    )
    console.print(f"Starting `vllm serve` with {escape(str(model))}", soft_wrap=True)
    console.print(f"Log: {escape(str(server.log))}", soft_wrap=True)
    with _signals_end_the_block(), server:
        ready_after = _await_ready(server, options, console)
        console.print(f"The server was ready after {ready_after:.0f} s, at {server.url}\n")
        with console.status("A first short request, so that the measured one finds all compiled"):
            _complete(server, WARM_UP_PROMPT, WARM_UP_TOKENS, options, None)
        before = server.speculation_counters()
        console.print(
            f"[dim]{escape(options.prompt)}[/dim]", end="", highlight=False, soft_wrap=True
        )
        completion = _complete(server, options.prompt, options.max_tokens, options, console)
        console.print("\n")
        server.check_alive()
        _report(server, completion, before, options, console)
        if options.keep:
            server.detach()
            _explain_kept(server, console)


def _await_ready(server: VllmServer, options: DemoOptions, console: Console) -> float:
    shown = ""
    with console.status("Starting vLLM") as status:

        def on_stage(stage: str, waited: float) -> None:
            nonlocal shown
            status.update(f"Starting vLLM ({waited:.0f} s; often 1 to 2 minutes): {stage}")
            if stage != shown and not console.is_terminal:
                console.print(f"{waited:5.0f} s  {stage}")
            shown = stage

        return server.wait_ready(options.startup_timeout, on_stage)


def _complete(
    server: VllmServer,
    prompt: str,
    max_tokens: int,
    options: DemoOptions,
    console: Console | None,
) -> Completion:
    def on_text(text: str) -> None:
        if console is not None:
            console.print(text, end="", markup=False, highlight=False, soft_wrap=True)

    return stream_completion(
        server.url,
        model=SERVED_NAME,
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=options.temperature,
        seed=options.seed,
        on_text=on_text,
    )


def _report(
    server: VllmServer,
    completion: Completion,
    before: dict[str, float],
    options: DemoOptions,
    console: Console,
) -> None:
    speed = completion.tokens_per_second
    rate = "" if speed is None else f", then {speed:.1f} tokens/s"
    console.print(
        f"Speed: {completion.completion_tokens} tokens; the first after "
        f"{completion.first_token_s:.2f} s ({completion.prompt_tokens} prompt tokens){rate}.",
        soft_wrap=True,
    )
    console.print(f"Speculation: {_speculation(server, before, options)}", soft_wrap=True)
    device = server.device()
    words = CPU_WORDS.format(kernels=_kernels())
    if device != "cpu":
        words = f"The engine reported the device {device!r}."
    console.print(f"Device: {words} ({options.dtype}, vLLM's eager mode)", soft_wrap=True)
    console.print(f"Log: {escape(str(server.log))}", soft_wrap=True)


def _kernels() -> str:
    # The server runs with this interpreter, so it finds numba exactly if we do.
    if find_spec("numba") is None:
        return "torch alone (numba is not installed, so decoding is slower than it could be)"
    return "torch and this project's numba kernels"


def _speculation(server: VllmServer, before: dict[str, float], options: DemoOptions) -> str:
    if not options.speculative_tokens:
        return "off."
    after = server.speculation_counters()
    drafted = after.get("drafted", 0) - before.get("drafted", 0)
    accepted = after.get("accepted", 0) - before.get("accepted", 0)
    if drafted <= 0:
        return "the server proposed no draft token for this text."
    return (
        f"{accepted:.0f} of {drafted:.0f} draft tokens accepted ({accepted / drafted:.0%}), "
        f"{options.speculative_tokens} proposed a step by the MTP layer."
    )


def _explain_kept(server: VllmServer, console: Console) -> None:
    request = {"model": SERVED_NAME, "prompt": DEFAULT_PROMPT, "max_tokens": 60, "temperature": 0}
    body = json.dumps(request)
    console.print("\nThe server keeps running. Ask it:")
    example = f"curl {server.url}/v1/completions -H 'Content-Type: application/json' -d '{body}'"
    for line in (example, "Stop it:", f"kill -- -{server.pid}"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _line(verdict: Verdict) -> str:
    return f"- {verdict.check}: {verdict.found}\n  remedy: {verdict.remedy}"


@contextmanager
def _signals_end_the_block() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, so that `with` blocks clean up."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
