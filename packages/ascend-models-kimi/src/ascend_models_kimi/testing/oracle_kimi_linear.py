"""transformers as the reference for Kimi-Linear: logits and greedy tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from ascend_ops_core.testing.language_models import (
    SMALLEST_SELECTION_GAP,
    AmbiguousPromptError,
    Greedy,
    NarrowestGap,
    Said,
    greedy_in_transformers,
    oracle_run,
    random_prompt,
)


class KimiLinearOracle:
    """A checkpoint folder run by transformers' own Kimi-Linear, in eager attention.

    Args:
        directory: Folder with `config.json` and `model.safetensors` in published names.
        dtype: float32 (bf16 weights are then exact), or bfloat16 to see transformers' own error.

    Raises:
        ValueError: When transformers leaves a tensor of its model unset, or ignores one: such a run
            would compare against random weights.
    """

    def __init__(self, directory: str | Path, dtype: torch.dtype = torch.float32) -> None:
        from transformers import KimiLinearConfig, KimiLinearForCausalLM

        self.directory = Path(directory)
        # A running vLLM has its own config class for the name.
        config = KimiLinearConfig.from_pretrained(self.directory)
        self.model, loading = KimiLinearForCausalLM.from_pretrained(
            self.directory,
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            output_loading_info=True,
        )
        unread = sorted(loading["unexpected_keys"])
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
        given = torch.tensor([list(ids)])
        rows: torch.Tensor = self.model(input_ids=given, use_cache=False).logits[0].float()
        return rows

    @oracle_run()
    def greedy(self, prompt_ids: Sequence[int], count: int) -> Greedy:
        """Generate `count` tokens with transformers' cache, always the best one."""
        return greedy_in_transformers(self.model, prompt_ids, count, self.said)

    def clear_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Return `logits` of a sequence in which rounding decides no choice of experts.

        Raises:
            AmbiguousPromptError: When it decides one: the logits are then not defined to the bars.
        """
        gap = NarrowestGap()
        routers = [m for m in self.model.modules() if hasattr(m, "e_score_correction_bias")]
        hooks = [
            m.register_forward_hook(lambda r, _, out: see_router(gap, r, out)) for m in routers
        ]
        try:
            logits = self.logits(ids)
        finally:
            for handle in hooks:
                handle.remove()
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
        """
        known = self.said.clear_logits(prompt_ids, tokens)
        if known is not None:
            return known
        rows = self.clear_logits([*prompt_ids, *tokens[:-1]])[len(prompt_ids) - 1 :]
        self.said.keep(prompt_ids, Greedy(list(tokens), rows), clear=True)
        return rows

    def clear_prompt(self, length: int, count: int, seed: int = 0) -> list[int]:
        """Return a random prompt with which rounding decides no choice of a greedy run.

        Args:
            length: Tokens of the prompt.
            count: Tokens that will be generated.
            seed: Of the first prompt that is tried.

        Raises:
            AmbiguousPromptError: None of twenty prompts will do.
        """
        for attempt in range(20):
            vocab = self.model.config.vocab_size
            prompt = random_prompt(length, vocab, seed=seed + 1000 * attempt)
            try:
                self.picked_logits(prompt, self.greedy(prompt, count + 1).tokens)
            except AmbiguousPromptError:
                continue
            return prompt
        raise AmbiguousPromptError(f"no clear prompt of {length} tokens from seed {seed}")


def see_router(gap: NarrowestGap, router: Any, output: Any) -> None:
    """Take in both choices of a grouped router: of groups, and of experts within them."""
    scores = output[0].sigmoid() + router.e_score_correction_bias
    groups = scores.unflatten(-1, (router.num_group, -1))
    best = groups.topk(2, dim=-1).values.sum(-1)
    gap.see(best, router.topk_group)
    chosen = torch.zeros_like(best).scatter(-1, best.topk(router.topk_group, dim=-1).indices, 1.0)
    outside = (chosen == 0).unsqueeze(-1).expand_as(groups).flatten(-2)
    gap.see(scores.masked_fill(outside, float("-inf")), router.top_k)
