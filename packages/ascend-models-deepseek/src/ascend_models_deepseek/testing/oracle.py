"""transformers as the reference: logits and greedy tokens of a checkpoint folder.

Sequences run one at a time and without padding, since left padding changes what transformers'
DeepSeek-V4 computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import torch
from ascend_ops_core.testing.language_models import (
    SMALLEST_SELECTION_GAP,
    AmbiguousPromptError,
    Greedy,
    Said,
    greedy_in_transformers,
    oracle_run,
)

from ascend_models_deepseek.testing.selection import watch_selections

__all__ = ["AmbiguousPromptError", "Greedy", "Oracle", "oracle_run", "selection_matters"]


class Oracle:
    """A checkpoint folder run by transformers' own DeepSeek-V4, in eager attention.

    Args:
        directory: Folder with `config.json` and `model.safetensors` in original names.
        dtype: float32 (bf16 weights are then exact), or bfloat16 to see transformers' own error.

    Raises:
        ValueError: When transformers leaves a tensor of its model unset, or ignores one that is
            not part of the draft layer: such a run would compare against random weights.
    """

    def __init__(self, directory: str | Path, dtype: torch.dtype = torch.float32) -> None:
        from transformers import DeepseekV4ForCausalLM

        self.directory = Path(directory)
        self.model, loading = DeepseekV4ForCausalLM.from_pretrained(
            self.directory, dtype=dtype, attn_implementation="eager", output_loading_info=True
        )
        unread = [name for name in loading["unexpected_keys"] if not name.startswith("mtp.")]
        missing = sorted(loading["missing_keys"])
        mismatched = sorted(str(key) for key in loading["mismatched_keys"])
        if unread or missing or mismatched:
            raise ValueError(
                f"{self.directory}: transformers could not read this checkpoint exactly: "
                f"missing {missing}, unexpected {unread}, misshaped {mismatched}"
            )
        self.model.eval()

    @cached_property
    def said(self) -> Said:
        """Greedy continuations that are known."""
        return Said()

    @oracle_run()
    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Return float32 logits `[len(ids), vocab]` of one uncached forward over all positions."""
        return self.model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].float()

    @oracle_run()
    def chunked_logits(self, ids: Sequence[int], chunk: int) -> torch.Tensor:
        """Return the same as `logits`, fed through transformers' cache `chunk` tokens at a time."""
        cache, parts = None, []
        for start in range(0, len(ids), chunk):
            piece = torch.tensor([list(ids[start : start + chunk])])
            out = self.model(input_ids=piece, cache=cache, use_cache=True)
            cache = out.cache
            parts.append(out.logits[0].float())
        return torch.cat(parts)

    @oracle_run()
    def greedy(self, prompt_ids: Sequence[int], count: int) -> Greedy:
        """Generate `count` tokens with transformers' cache, always the best one."""
        return greedy_in_transformers(self.model, prompt_ids, count, self.said)

    def clear_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Return `logits` of a sequence in which rounding decides no selection.

        Raises:
            AmbiguousPromptError: When it decides one: the logits are then not defined to the bars.
        """
        with watch_selections(self.model) as gap:
            logits = self.logits(ids)
        if gap.value < SMALLEST_SELECTION_GAP:
            raise AmbiguousPromptError(
                f"a sequence of {len(ids)} tokens has a top-k decided by {gap.value:.1e}, less "
                f"than {SMALLEST_SELECTION_GAP:.0e}: its logits depend on the order of additions; "
                "use another prompt seed"
            )
        return logits

    def picked_logits(self, prompt_ids: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        """Return `[len(tokens), vocab]` logits that each token of a continuation is picked from.

        One forward over the prompt and the continuation. When every row's argmax is the token that
        follows, the continuation equals the oracle's greedy one, by induction over its length.

        Raises:
            AmbiguousPromptError: See `clear_logits`.
        """
        known = self.said.clear_logits(prompt_ids, tokens)
        if known is not None:
            return known
        rows = self.clear_logits([*prompt_ids, *tokens[:-1]])[len(prompt_ids) - 1 :]
        self.said.keep(prompt_ids, Greedy(list(tokens), rows), clear=True)
        return rows

    def selection_effect(self, ids: Sequence[int]) -> float:
        """Largest change of any logit when the indexer keeps every compressed entry."""
        kept = self.logits(ids)
        with self._select_everything():
            return float((self.logits(ids) - kept).abs().max())

    @contextmanager
    def _select_everything(self) -> Iterator[None]:
        indexers = [m for m in self.model.modules() if hasattr(m, "index_topk")]
        saved = [module.index_topk for module in indexers]
        try:
            for module in indexers:
                module.index_topk = self.model.config.max_position_embeddings
            yield
        finally:
            for module, topk in zip(indexers, saved, strict=True):
                module.index_topk = topk


def selection_matters(directory: str | Path, ids: Sequence[int], least: float = 0.05) -> bool:
    """Tell whether switching index top-k off changes some logit of `ids` by more than `least`."""
    return Oracle(directory).selection_effect(ids) > least
