"""Benchmarks of the stack; ``python -m benchmarks --help``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.models import checkpoint_dir, ensure_checkpoint
from benchmarks.workload import Measurement, Workload

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)
PEERS = ("transformers", "ascend")
HELD: dict[str, dict[str, str]] = {
    "native": {},
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "NUMBA_CPU_NAME": "haswell",
        # Without these numba keeps the features of the CPU that it finds, whatever its name.
        "NUMBA_CPU_FEATURES": "+avx2,+fma,+f16c,+bmi2",
    },
}
"""What keeps torch, its libraries and numba to an instruction set."""


_Repeats = Annotated[int, typer.Option(help="Measurements per cell; the median counts.")]
_Dtypes = Annotated[list[str] | None, typer.Option(help="float32, bfloat16 or both.")]
_Batches = Annotated[list[int] | None, typer.Option(help="Batch sizes.")]
_Threads = Annotated[int, typer.Option(help="Threads of both peers.")]
_Isa = Annotated[str, typer.Option(help="native, or avx2: hold both peers to AVX2 on a wider CPU.")]
_Work = Annotated[Path | None, typer.Option(help="Folder for checkpoints.")]


@app.command()
def v4(
    repeats: _Repeats = 3,
    dtype: _Dtypes = None,
    batch: _Batches = None,
    threads: _Threads = 2,
    isa: _Isa = "native",
    work: _Work = None,
) -> None:
    """DeepSeek-V4 (256M parameters) against transformers: speed and memory, in one run."""
    _measure("v4", repeats, dtype, batch, threads, isa, work)


@app.command()
def v32(
    repeats: _Repeats = 3,
    dtype: _Dtypes = None,
    batch: _Batches = None,
    threads: _Threads = 2,
    isa: _Isa = "native",
    work: _Work = None,
) -> None:
    """The same of DeepSeek-V3.2 (267M parameters)."""
    _measure("v32", repeats, dtype, batch, threads, isa, work)


@app.command()
def m3(
    repeats: _Repeats = 3,
    dtype: _Dtypes = None,
    batch: _Batches = None,
    threads: _Threads = 2,
    isa: _Isa = "native",
    work: _Work = None,
) -> None:
    """The same of MiniMax-M3's text model (234M parameters)."""
    _measure("m3", repeats, dtype, batch, threads, isa, work)


@app.command(name="kimi_linear")
def kimi_linear(
    repeats: _Repeats = 3,
    dtype: _Dtypes = None,
    batch: _Batches = None,
    threads: _Threads = 2,
    isa: _Isa = "native",
    work: _Work = None,
) -> None:
    """The same of Kimi-Linear (66M parameters)."""
    _measure("kimi_linear", repeats, dtype, batch, threads, isa, work)


@app.command(name="qwen3_next")
def qwen3_next(
    repeats: _Repeats = 3,
    dtype: _Dtypes = None,
    batch: _Batches = None,
    threads: _Threads = 2,
    isa: _Isa = "native",
    work: _Work = None,
) -> None:
    """The same of Qwen3-Next, vLLM's own model on our Gated DeltaNet (70M parameters)."""
    _measure("qwen3_next", repeats, dtype, batch, threads, isa, work)


def _measure(
    model: str,
    repeats: int,
    dtype: list[str] | None,
    batch: list[int] | None,
    threads: int,
    isa: str,
    work: Path | None,
) -> None:
    from benchmarks import machine, memory, report
    from benchmarks.report import Result

    if isa not in HELD:
        raise typer.BadParameter(f"--isa {isa}: known are {', '.join(HELD)}")
    # Children inherit what this process was told; every cell checks what torch made of it.
    os.environ.update(HELD[isa])
    if HELD[isa]:
        # torch does not keep code apart that it compiled under another ATEN_CPU_CAPABILITY; where
        # one is run under the other, vLLM's compiled sampler corrupts the heap.
        compiled = Path(tempfile.gettempdir()) / f"torchinductor-benchmark-{isa}"
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(compiled)
    for name, value in HELD[isa].items():
        typer.echo(f"set for both peers: {name}={value}")
    work = work or Path(tempfile.gettempdir()) / "ascend-benchmarks"
    measurements: list[Measurement] = []
    dtypes = dtype or ["float32", "bfloat16"]
    for name in dtypes:
        ensure_checkpoint(work, model, name, typer.echo)
        for size in batch or [1, 8]:
            workload = Workload(name, size, repeats=repeats, model=model)
            for peer in PEERS:
                typer.echo(f"{peer} {name} batch {size} ...")
                measurements.append(_in_process_of_its_own(peer, workload, work, threads))
    used = {m.capability for m in measurements}
    if isa != "native" and used != {isa.upper()}:
        raise typer.BadParameter(f"--isa {isa}, but torch used {', '.join(sorted(used))}")
    facts = machine.describe(threads) | {"torch uses": ", ".join(sorted(used))}
    facts |= HELD[isa]
    peaks = [
        memory.measure(model, checkpoint_dir(work, model, name), name, threads) for name in dtypes
    ]
    # Before the profile, which may fail, as minutes were spent on it.
    report.write(Result(facts, measurements, peaks, []))
    parts = _profile_in_process_of_its_own(model, dtypes[0], work, threads)
    raw = report.write(Result(facts, measurements, peaks, parts))
    typer.echo(f"written: {report.PAGES[model]}, {report.plot_of(model)}, {raw}")


@app.command(hidden=True)
def cell(peer: str, workload: str, work: Path, result: Path) -> None:
    """Run one peer on one workload in this process."""
    import torch

    from benchmarks import peer_ours, peer_transformers

    plan = Workload(**json.loads(workload))
    runner = peer_ours if peer == "ascend" else peer_transformers
    measured = runner.run(checkpoint_dir(work, plan.model, plan.dtype), plan)
    measured.capability = torch.backends.cpu.get_cpu_capability()
    result.write_text(json.dumps(measured.to_json()))


@app.command()
def moe(
    dtype: Annotated[list[str] | None, typer.Option(help="float32, bfloat16 or both.")] = None,
    experts: Annotated[list[int] | None, typer.Option(help="Numbers of experts.")] = None,
    threads: Annotated[int, typer.Option(help="Threads of all peers.")] = 2,
    isa: Annotated[
        str, typer.Option(help="native, or avx2: hold all peers to AVX2 on a wider CPU.")
    ] = "native",
) -> None:
    """Routed experts against transformers' and vLLM's on a CPU, in one run."""
    if isa not in HELD:
        raise typer.BadParameter(f"--isa {isa}: known are {', '.join(HELD)}")
    command = [sys.executable, "-m", "benchmarks", "moe-cells", isa, str(threads)]
    command += [",".join(dtype or ["float32", "bfloat16"])]
    command += [",".join(str(number) for number in experts or [16, 128])]
    subprocess.run(command, env={**os.environ, **HELD[isa], **environment(threads)}, check=True)


@app.command(hidden=True)
def moe_cells(isa: str, threads: int, dtypes: str, experts: str) -> None:
    """Run the cells of the experts' benchmark in this process and write the page."""
    import torch

    from benchmarks import machine, moe, moe_report

    torch.set_num_threads(threads)
    capability = torch.backends.cpu.get_cpu_capability()
    if isa == "avx2":
        moe.hold_vllm_to_avx2()
        if capability != "AVX2":
            raise typer.BadParameter(f"--isa avx2, but torch used {capability}")
        if machine.numba_has("avx512f"):
            raise typer.BadParameter("--isa avx2, but numba compiles for AVX-512")
    # Other work on the machine slows whoever waits for a thread, not all peers alike.
    load = {"load average before the run": f"{os.getloadavg()[0]:.1f}"}
    facts = machine.describe(threads) | {"torch uses": capability} | load | HELD[isa]
    cells = moe.measure(dtypes.split(","), [int(n) for n in experts.split(",")], typer.echo)
    # The larger one, as other work on the machine can only lower it.
    before = float(facts["read bandwidth"].split()[0])
    bandwidth = max(before, machine.read_bandwidth(threads))
    facts["read bandwidth"] = f"{bandwidth:.1f} GB/s"
    typer.echo(f"written: {moe_report.PAGE}, {moe_report.write(capability, facts, cells)}")


@app.command(name="context")
def context_of(
    model: Annotated[str, typer.Argument(help="m3, kimi_linear or qwen3_next.")],
    threads: Annotated[int, typer.Option(help="Threads.")] = 2,
) -> None:
    """Decode against the length of the context, up to 32k tokens."""
    command = [sys.executable, "-m", "benchmarks", "context-cells", model, str(threads)]
    subprocess.run(command, env={**os.environ, **environment(threads)}, check=True)


@app.command(hidden=True)
def context_cells(model: str, threads: int) -> None:
    """Run the contexts in this process and write the page."""
    from benchmarks import context, machine, report

    if model not in context.STUDIES:
        raise typer.BadParameter(f"{model}: known are {', '.join(context.STUDIES)}")
    context.write(model, machine.describe(threads), context.measure(model, typer.echo))
    report.render(model)
    typer.echo(f"written: {report.PAGES[model]}, {context.plot_of(model)}, {context.raw_of(model)}")


@app.command()
def specdec(
    repeats: _Repeats = 3,
    threads: Annotated[int, typer.Option(help="Threads.")] = 2,
) -> None:
    """Drafts for the trained tiny targets against no speculation, in one run."""
    command = [sys.executable, "-m", "benchmarks", "specdec-cells", str(repeats), str(threads)]
    subprocess.run(command, env={**os.environ, **environment(threads)}, check=True)


@app.command(hidden=True)
def specdec_cells(repeats: int, threads: int) -> None:
    """Run the cells of the drafts' benchmark in this process and write the page."""
    import torch

    from benchmarks import machine, specdec, specdec_report

    capability = torch.backends.cpu.get_cpu_capability()
    load = {"load average before the run": f"{os.getloadavg()[0]:.1f}"}
    facts = machine.describe(threads) | {"torch uses": capability} | load
    cells = specdec.measure(repeats, typer.echo)
    typer.echo(f"written: {specdec_report.PAGE}, {specdec_report.write(capability, facts, cells)}")


@app.command()
def profile(
    model: Annotated[str, typer.Option(help="v4, v32, m3, kimi_linear or qwen3_next.")] = "v4",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    batch: Annotated[int, typer.Option(help="Sequences at once.")] = 1,
    threads: Annotated[int, typer.Option(help="Threads.")] = 2,
    work: Annotated[Path | None, typer.Option(help="Folder for checkpoints.")] = None,
) -> None:
    """Where the time of our decode goes, by operator."""
    from benchmarks import decode_profile

    work = work or Path(tempfile.gettempdir()) / "ascend-benchmarks"
    checkpoint = ensure_checkpoint(work, model, dtype, typer.echo)
    os.environ.update(environment(threads))
    for part in decode_profile.run(model, checkpoint, dtype, batch):
        typer.echo(f"{part.label:40} {part.milliseconds:8.2f} ms {part.share:7.1%}")


@app.command()
def overhead() -> None:
    """Host cost of calling an operator, against a plain function and torch's custom_op."""
    from benchmarks import op_overhead

    costs = op_overhead.measure()
    op_overhead.write(costs)
    for cost in costs:
        typer.echo(f"{cost.way:36} {cost.microseconds:8.2f} us {cost.ratio:6.2f}x")


@app.command()
def host_cost() -> None:
    """Host time of our parts in a decode step on the simulated NPU, against vLLM's own."""
    from benchmarks import host_cost as benchmark

    costs = benchmark.measure()
    benchmark.write(costs)
    typer.echo(f"written: {benchmark.PAGE}, {benchmark.RAW}")


def _in_process_of_its_own(peer: str, workload: Workload, work: Path, threads: int) -> Measurement:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "benchmarks", "cell", peer]
        command += [json.dumps(workload.__dict__), str(work), str(result)]
        done = subprocess.run(
            command, env={**os.environ, **environment(threads)}, capture_output=True, text=True
        )
        if done.returncode:
            raise typer.BadParameter(f"{peer} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        raw = json.loads(result.read_text())
    raw["workload"] = Workload(**raw["workload"])
    return Measurement(**raw)


def _profile_in_process_of_its_own(model: str, dtype: str, work: Path, threads: int) -> list[str]:
    command = [sys.executable, "-m", "benchmarks", "profile", "--model", model, "--dtype", dtype]
    command += ["--threads", str(threads), "--work", str(work)]
    done = subprocess.run(
        command,
        env={**os.environ, **environment(threads)},
        capture_output=True,
        text=True,
        check=True,
    )
    return [line for line in done.stdout.splitlines() if line.endswith("%")]


def environment(threads: int) -> dict[str, str]:
    """Both peers get the same threads; the engine runs in the measuring process."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "NUMBA_NUM_THREADS": str(threads),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }


if __name__ == "__main__":
    app()
