"""Run two data-parallel replicas, as the server would; started by a test, as another process.

Usage: replicas.py ARGUMENTS.json RESULT.json, where the arguments hold `settings` (of the engine),
`waves` (lists of `[prompt, replica]`, generated for one wave after the other) and `count`. Writes
the tokens of every prompt, by wave.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any


async def generate(given: dict[str, Any]) -> list[list[list[int]]]:
    """Start the engine and return what every replica generated greedily."""
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**given["settings"]))
    params = SamplingParams(
        max_tokens=given["count"],
        temperature=0,
        detokenize=False,
        ignore_eos=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )

    async def one(name: str, prompt: list[int], replica: int) -> list[int]:
        tokens: list[int] = []
        async for output in engine.generate(
            {"prompt_token_ids": prompt}, params, name, data_parallel_rank=replica
        ):
            tokens = list(output.outputs[0].token_ids)
        return tokens

    found = []
    for number, wave in enumerate(given["waves"]):
        requests = [one(f"{number}-{i}", *request) for i, request in enumerate(wave)]
        found.append(await asyncio.gather(*requests))
    engine.shutdown()
    return found


if __name__ == "__main__":
    arguments, result = map(Path, sys.argv[1:])
    result.write_text(json.dumps(asyncio.run(generate(json.loads(arguments.read_text())))))
