"""Run the engine with Triton kernels in the interpreter; started by a test, as another process.

Usage: with_kernels.py ARGUMENTS.json RESULT.json, where the arguments hold `settings` (of
`vllm.LLM`), `prompts` (lists of ids) and `count`. Writes `tokens` of every prompt, the number of
`launches` of every kernel, the `chosen` implementations of every operator that ran, and the number
of calls of every operator of torch_npu by its schema.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path


def main(arguments: Path, result: Path) -> None:
    """Generate greedily and store what ran."""
    from vllm import LLM, SamplingParams

    given = json.loads(arguments.read_text())
    llm = LLM(**given["settings"])
    from ascend_ops_core import registry
    from ascend_ops_core.launch import Launch, use_executor
    from ascend_ops_core.testing.contract import installed
    from ascend_ops_core.testing.simulated_npu.launches import execute

    launches: Counter[str] = Counter()

    def count_and_execute(launch: Launch) -> None:
        launches[launch.kernel.__name__] += 1
        execute(launch)

    use_executor(count_and_execute)
    contract = installed()
    assert contract is not None
    contract.calls.clear()
    params = SamplingParams(
        max_tokens=given["count"], temperature=0, detokenize=False, ignore_eos=True
    )
    prompts = [{"prompt_token_ids": ids} for ids in given["prompts"]]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    chosen = {
        name: sorted({choice.implementation for choice in operator._chosen.values()})
        for name, operator in registry._operators.items()
        if operator._chosen
    }
    found = {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "launches": launches,
        "chosen": chosen,
        "calls": Counter(call.schema for call in contract.calls),
    }
    result.write_text(json.dumps(found, indent=1, sort_keys=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
