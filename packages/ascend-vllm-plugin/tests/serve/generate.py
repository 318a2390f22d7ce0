"""Run `vllm.LLM` as a program of its own; started by the tests, because vLLM spawns processes.

Usage: generate.py ARGUMENTS.json RESULT.safetensors, where the arguments hold `settings` (of
`vllm.LLM`), `prompts` (lists of ids) and `count`, and may hold `images` (a list of files for every
prompt, for its placeholders). Writes `tokens.N [count]` and `logits.N [count, vocab]` for every
prompt N. With `memory` also `memory.RANK.NAME`, the bytes that every rank of an NPU reports; with
`acceptance` also `drafts [3]`: rounds, drafted and accepted tokens. From the test's own extension
of the worker, `experts_probe`: with `placements` also `placements.RANK [layers, places]` of
balanced experts, and with `reductions` also `reductions.RANK [calls]`, sums over ranks in every
call of a layer of experts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import save_file


def main(arguments: Path, result: Path) -> None:
    """Generate greedily and store what came back."""
    from vllm import LLM, SamplingParams

    given = json.loads(arguments.read_text())
    llm = LLM(**given["settings"])
    params = SamplingParams(
        max_tokens=given["count"],
        temperature=0,
        logprobs=-1,
        flat_logprobs=True,
        detokenize=False,
        ignore_eos=True,
    )
    prompts: list[dict[str, Any]] = [{"prompt_token_ids": ids} for ids in given["prompts"]]
    images = given.get("images", [[]] * len(prompts))
    for prompt, files in zip(prompts, images, strict=True):
        if files:
            prompt["multi_modal_data"] = {"image": [Image.open(file) for file in files]}
    if given.get("reductions"):
        assert min(llm.collective_rpc("count_reductions")) > 0
    stored: dict[str, torch.Tensor] = {}
    vocab = llm.llm_engine.model_config.get_vocab_size()
    for i, output in enumerate(llm.generate(prompts, params, use_tqdm=False)):
        completion = output.outputs[0]
        stored[f"tokens.{i}"] = torch.tensor(completion.token_ids)
        stored[f"logits.{i}"] = dense(completion.logprobs, vocab)
    if given.get("memory"):
        for rank, figures in enumerate(llm.collective_rpc("memory_figures")):
            stored |= {f"memory.{rank}.{n}": torch.tensor(size) for n, size in figures.items()}
    if given.get("placements"):
        for rank, layers in enumerate(llm.collective_rpc("expert_placements")):
            stored[f"placements.{rank}"] = torch.tensor(layers)
    if given.get("acceptance"):
        counted = {metric.name: metric for metric in llm.get_metrics()}
        names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
        found = [counted[f"vllm:spec_decode_{name}"].value for name in names]
        stored["drafts"] = torch.tensor(found, dtype=torch.int64)
    if given.get("reductions"):
        for rank, calls in enumerate(llm.collective_rpc("reductions")):
            stored[f"reductions.{rank}"] = torch.tensor(calls)
    save_file(stored, result)


def dense(rows: Any, vocab: int) -> torch.Tensor:
    """Turn vLLM's flat list of (token, logit) pairs into `[positions, vocab]`; NaN where absent."""
    table = torch.full((len(rows), vocab), float("nan"))
    ids, values = torch.tensor(rows.token_ids), torch.tensor(rows.logprobs)
    spans = zip(rows.start_indices, rows.end_indices, strict=True)
    for row, (start, end) in enumerate(spans):
        table[row, ids[start:end]] = values[start:end]
    return table


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
