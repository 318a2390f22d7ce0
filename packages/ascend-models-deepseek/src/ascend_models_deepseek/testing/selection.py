"""How clearly a model decides which compressed entries and which experts it uses.

A top-k whose last kept and first dropped score agree to within rounding is decided by the order of
additions: transformers then disagrees with itself between one forward and a chunked one. A test
prompt must have no such decision, or its logits are not defined to the tolerance they are held to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from ascend_ops_core.testing.language_models import NarrowestGap

__all__ = ["NarrowestGap", "watch_selections"]


@contextmanager
def watch_selections(model: torch.nn.Module) -> Iterator[NarrowestGap]:
    """Observe every index and router top-k of uncached forwards of transformers' DeepSeek-V4."""
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as hf

    gap = NarrowestGap()

    def index(indexer: hf.DeepseekV4Indexer) -> Any:
        def hook(_module: torch.nn.Module, _inputs: Any, scores: torch.Tensor) -> None:
            visible = (torch.arange(scores.shape[1]) + 1) // indexer.compress_rate
            future = torch.arange(scores.shape[2]) >= visible[:, None]
            gap.see(scores.masked_fill(future, float("-inf")), indexer.index_topk)

        return indexer.scorer.register_forward_hook(hook)

    def route(router: hf.DeepseekV4TopKRouter) -> Any:
        def hook(_module: torch.nn.Module, _inputs: Any, output: Any) -> None:
            gap.see(router.score_fn(output[0]) + router.e_score_correction_bias, router.top_k)

        return router.register_forward_hook(hook)

    hooks = [index(m) for m in model.modules() if isinstance(m, hf.DeepseekV4Indexer)]
    hooks += [route(m) for m in model.modules() if isinstance(m, hf.DeepseekV4TopKRouter)]
    try:
        yield gap
    finally:
        for handle in hooks:
            handle.remove()
