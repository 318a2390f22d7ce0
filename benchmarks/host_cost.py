"""What a decode step costs the host besides the work of the device, on the simulated NPU.

Our parts are metadata building and the checks before a replay; the yardstick is vLLM's own input
preparation in the same steps. Kernels run in the host's memory there, so the whole step says
nothing and is not shown.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine

PAGE = Path(__file__).parent.parent / "docs" / "host-cost.md"
RAW = Path(__file__).parent / "results" / "host-cost.json"
REQUESTS = (1, 32, 256)
PROMPT, STEPS, WARM_UP = 5, 14, 4


@dataclass(frozen=True)
class Cost:
    """Medians over the steps of one batch size, in microseconds a step.

    Attributes:
        requests: decoding requests.
        graphs: steps were replayed graphs.
        metadata: our metadata builders of all cache groups.
        layout: the ragged batch as flat tensors, made when a layer asked for it.
        derived: tensors of metadata, made likewise.
        checks: our checks before a replay.
        vllm_inputs: vLLM's ``_prepare_inputs``, the yardstick.
        ratio: our parts together over the yardstick.
        device_to_host: copies to the host a step, the sampled tokens included.
        synchronisations: waits of the host a step.
    """

    requests: int
    graphs: bool
    metadata: float
    layout: float
    derived: float
    checks: float
    vllm_inputs: float
    ratio: float
    device_to_host: float
    synchronisations: float


class Stopwatch:
    """Sums the time inside some methods, outermost calls only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def watch(self, owner: Any, name: str, part: str) -> None:
        """Time every call of ``owner.name`` as ``part``."""
        method: Callable[..., Any] = getattr(owner, name)
        self.seconds[part] = 0.0

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds[part] += time.perf_counter() - started

        setattr(owner, name, timed)

    def take(self) -> dict[str, float]:
        """Return microseconds by part since the last call."""
        taken = {part: 1e6 * seconds for part, seconds in self.seconds.items()}
        self.seconds = dict.fromkeys(self.seconds, 0.0)
        return taken


def measure() -> list[Cost]:
    """Run every cell in a process of its own, which must have the simulated device alone."""
    costs = []
    for graphs in (False, True):
        for requests in REQUESTS:
            with tempfile.TemporaryDirectory() as folder:
                result = Path(folder) / "cost.json"
                command = [sys.executable, "-m", __name__, str(requests), str(int(graphs))]
                environ = {
                    "ASCEND_SIMULATED_NPU": "family=A3,devices=1,kernels=reference",
                    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
                    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                    "VLLM_LOGGING_LEVEL": "ERROR",
                }
                done = subprocess.run(
                    [*command, str(result)],
                    env={**os.environ, **environ},
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode:
                    raise RuntimeError(f"{command} failed:\n{done.stderr[-4000:]}")
                costs.append(Cost(**json.loads(result.read_text())))
    return costs


def cell(requests: int, graphs: bool) -> Cost:
    """Measure one batch size in this process."""
    from ascend_attention.vllm.dsa import backend
    from ascend_models_deepseek.testing import SPECS, random_prompt, write_checkpoint
    from ascend_ops_core.testing.simulated_npu import Counters, counters
    from ascend_vllm_plugin.npu.graphs import ACLGraphWrapper
    from vllm import LLM, SamplingParams
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        spec = SPECS["mixed"]
        llm = LLM(
            model=str(write_checkpoint(spec, Path(folder) / "checkpoint")),
            dtype="float32",
            skip_tokenizer_init=True,
            max_model_len=256,
            max_num_seqs=requests,
            max_num_batched_tokens=max(2048, requests * PROMPT),
            kv_cache_memory_bytes=1 << 29,
            enable_prefix_caching=False,
            enforce_eager=not graphs,
            compilation_config={"cudagraph_capture_sizes": [requests]} if graphs else {},
        )
    watch.watch(backend.AscendDSAMetadataBuilder, "build", "metadata")
    watch.watch(backend.AscendDSAMetadataBuilder, "_layout", "layout")
    watch.watch(backend, "build_metadata", "derived")
    watch.watch(ACLGraphWrapper, "_check", "checks")
    watch.watch(GPUModelRunner, "_prepare_inputs", "vllm_inputs")
    engine = llm.llm_engine
    params = SamplingParams(
        temperature=0, max_tokens=STEPS + WARM_UP + 2, ignore_eos=True, detokenize=False
    )
    for index in range(requests):
        prompt = random_prompt(PROMPT, spec.vocab_size, seed=index)
        engine.add_request(str(index), {"prompt_token_ids": prompt}, params)
    steps: list[dict[str, float]] = []
    counted: list[Counters] = []
    for _ in range(WARM_UP + STEPS):
        before = counters()
        watch.take()
        engine.step()
        steps.append(watch.take())
        counted.append(counters() - before)
    steps, counted = steps[WARM_UP:], counted[WARM_UP:]
    if graphs and any(one.replays != 1 for one in counted):
        raise RuntimeError("not every measured step was a replay")
    median = {part: statistics.median(step[part] for step in steps) for part in steps[0]}
    ours = sum(median[part] for part in ("metadata", "layout", "derived", "checks"))
    return Cost(
        requests,
        graphs,
        **median,
        ratio=ours / median["vllm_inputs"],
        device_to_host=statistics.mean(one.device_to_host for one in counted),
        synchronisations=statistics.mean(one.synchronisations for one in counted),
    )


def write(costs: list[Cost]) -> None:
    """Write the page and the raw numbers."""
    RAW.write_text(json.dumps([asdict(one) for one in costs], indent=1) + "\n")
    lines = [
        "# Host cost of a decode step on the NPU path",
        "",
        "Measured with `./tools/dev bench -- host-cost` on the simulated NPU (A3 profile), "
        f"{machine.cpu_name()}: medians of {STEPS} steps in microseconds of host time, one engine "
        "a row, six layers of every kind. Not run on hardware; nothing here is time of a device. "
        "The yardstick is vLLM's own input preparation in the same steps.",
        "",
        "| requests | steps | metadata builders | layout | tensors derived | "
        "checks before a replay | vLLM's input preparation | ours / vLLM's | "
        "copies to the host a step |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in costs:
        kind = "replayed graphs" if one.graphs else "without graphs"
        lines.append(
            f"| {one.requests} | {kind} | {one.metadata:.0f} | {one.layout:.0f} | "
            f"{one.derived:.0f} | {one.checks:.0f} | {one.vllm_inputs:.0f} | {one.ratio:.2f}x | "
            f"{one.device_to_host:.1f} |"
        )
    lines += [
        "",
        "Metadata is made when the first layer of a cache kind asks for it, once a step and kind, "
        "never per layer; the simulated device runs its operators within that time, which hardware "
        "would not. A replayed graph asks for none: it computes the same tensors on the "
        "device from vLLM's own buffers. The copies to the host are the sampled tokens, which "
        "vLLM fetches.",
        "",
    ]
    PAGE.write_text("\n".join(lines))


if __name__ == "__main__":
    Path(sys.argv[3]).write_text(json.dumps(asdict(cell(int(sys.argv[1]), sys.argv[2] == "1"))))
