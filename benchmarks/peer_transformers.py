"""transformers' own model on the workload, with its default experts."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from benchmarks.models import MODELS
from benchmarks.workload import Measurement, Workload, peak_rss_mb


def run(checkpoint: Path, workload: Workload) -> Measurement:
    """Measure prefill and decode with a key-value cache."""
    import transformers

    of = MODELS[workload.model]
    torch.set_grad_enabled(False)
    model = (
        getattr(transformers, of.transformers)
        .from_pretrained(
            checkpoint, dtype=getattr(torch, workload.dtype), attn_implementation=of.attention
        )
        .eval()
    )
    result = Measurement("transformers", workload)
    model(input_ids=torch.tensor(workload.prompts(-1))[:1, :140], use_cache=True)
    for repeat in range(workload.repeats):
        ids = torch.tensor(workload.prompts(repeat))
        start = time.perf_counter()
        out = model(input_ids=ids, use_cache=True, logits_to_keep=1)
        token = out.logits[:, -1:].argmax(-1)
        result.prefill_s.append(time.perf_counter() - start)
        tokens = [int(token[0, 0])]
        start = time.perf_counter()
        for _ in range(workload.decode):
            cache = getattr(out, "cache", None)
            cache = out.past_key_values if cache is None else cache
            out = model(input_ids=token, cache=cache, use_cache=True)
            token = out.logits[:, -1:].argmax(-1)
            tokens.append(int(token[0, 0]))
        result.decode_s.append(time.perf_counter() - start)
        if repeat == 0:
            result.tokens = tokens
    result.peak_rss_mb = peak_rss_mb()
    return result
