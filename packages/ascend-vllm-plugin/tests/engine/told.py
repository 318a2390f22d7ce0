"""Drafts that do not come from a draft model: all of them right, or as wrong as can be."""

from __future__ import annotations

from typing import Any

import torch

from .harness import Request


class Told:
    """Stands in the place of the n-gram proposer, and knows what the target will say.

    Args:
        oracle: the target in transformers.
        requests: greedy requests; every one is known by its text.
        worst: proposes, instead of what will be said, the token that is least likely there.
    """

    def __init__(self, oracle: Any, requests: list[Request], *, worst: bool, most: int) -> None:
        self.known = []
        for request in requests:
            said = oracle.greedy(request.prompt, request.count + most).tokens
            logits = oracle.picked_logits(request.prompt, said)
            proposed = logits.argmin(dim=-1).tolist() if worst else said
            self.known.append((request.prompt + said, len(request.prompt), proposed))

    def __call__(
        self, most: int, sampled: list[list[int]], lengths: Any, ids: Any, **unused: Any
    ) -> list[list[int]]:
        drafts: list[list[int]] = []
        for row, new in enumerate(sampled):
            text = ids[row, : lengths[row]].tolist()
            found = [
                proposed[len(text) - start :][:most]
                for whole, start, proposed in self.known
                if whole[: len(text)] == text
            ]
            drafts.append(found[0] if new and found else [])
        return drafts


class Stubborn:
    """Stands in the place of a draft model, and draws from one law, whatever the text is.

    Args:
        drafter: the runner's, of a method that drafts on the device.
        law: ``[V]`` float32.
        told: the runner is told the law with the drafts, as of drawn ones. Otherwise they are
            verified as certain.
    """

    def __init__(self, drafter: Any, law: torch.Tensor, *, told: bool) -> None:
        self.drafter, self.law, self.told = drafter, law, told
        self.generator = torch.Generator().manual_seed(5)

    def __call__(self, *given: Any, **named: Any) -> torch.Tensor:
        most = named.get("num_speculative_tokens", given[0] if given else None)
        requests = named["next_token_ids"].shape[0]
        drawn = torch.multinomial(
            self.law, requests * most, replacement=True, generator=self.generator
        )
        laws = self.law.expand(requests, most, -1).contiguous()
        self.drafter._last_draft_probs = laws if self.told else None
        return drawn.view(requests, most)
