"""One of several processes that run vLLM together, started like torchrun would; see the test.

Usage: variants.py ARGUMENTS.json RANK, where the arguments hold a list of `runs`, each with
`settings` (of `vllm.LLM`), `port`, `prompts` (of each data-parallel replica, by its rank) and
`count`. Writes `result.RANK.json` beside the arguments: for each run the tokens, the sizes of the
graphs, how many replays there were, the experts of a layer, the names of the static buffers, the
worker's figures of its memory, and of balanced experts where they lie and the last round's failure.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any


def main(arguments: Path, rank: int) -> None:
    """Run every engine, one after the other."""
    given = json.loads(arguments.read_text())
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
    os.environ["WORLD_SIZE"] = str(given["ranks"])
    results = [_generated(one, rank) for one in given["runs"]]
    arguments.with_name(f"result.{rank}.json").write_text(json.dumps(results))


def _generated(run: dict[str, Any], rank: int) -> dict[str, Any]:
    from ascend_ops_core.testing.simulated_npu import counters
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    os.environ["MASTER_PORT"] = str(run["port"])
    settings = run["settings"]
    llm = LLM(distributed_executor_backend="external_launcher", **settings)
    params = SamplingParams(
        max_tokens=run["count"], temperature=0, detokenize=False, ignore_eos=True
    )
    replica = rank // settings.get("tensor_parallel_size", 1)
    prompts = [{"prompt_token_ids": ids} for ids in run["prompts"][replica]]
    before = counters()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    done = counters() - before
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker
    runner = worker.model_runner
    model = runner.get_model()
    result = {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "graphs": runner.model.captured_sizes,
        "replays": done.replays,
        "layer": type(model.model.layers[0].attn.o_proj).__name__,
        "experts": len(model.model.layers[0].ffn.experts.w2),
        "buffers": [
            name for name in ("o_proj_send", "o_proj_received") if name in model.static_buffers
        ],
        "memory": worker.memory_figures(),
    }
    if settings.get("enable_eplb"):
        balancer = runner.eplb_state.balancer
        result["failure"] = balancer.last.failure
        result["placements"] = [one.maps.placement.physical_to_logical for one in balancer.layers]
        del balancer
    del llm, worker, runner, model
    gc.collect()
    cleanup_dist_env_and_memory()
    return result


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
