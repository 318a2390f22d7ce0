"""Greedy speculation with a DSpark draft: what an engine must draft and accept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from ascend_ops_core.testing.language_models import oracle_run

from ascend_models_deepseek.testing.dspark import DenseDSpark

__all__ = ["BlockSpeculation", "DSparkOracle"]


@dataclass(frozen=True)
class BlockSpeculation:
    """Rounds, and the drafts accepted at each place of a block."""

    rounds: int
    accepted: tuple[int, ...]


class DSparkOracle:
    """A target of transformers, in float32, with its draft.

    Args:
        target: transformers' model.
        draft: of that target.
    """

    def __init__(self, target: Any, draft: DenseDSpark) -> None:
        self.target, self.draft = target, draft
        self.embedding = target.get_input_embeddings().weight.detach()
        self.head = target.get_output_embeddings().weight.detach()

    @oracle_run()
    def aux(self, ids: torch.Tensor) -> torch.Tensor:
        """``[B, T, m * H]``: averages of the streams behind the layers that the draft reads."""
        seen: dict[int, torch.Tensor] = {}

        def keep(layer: int) -> Any:
            def hook(module: Any, arguments: Any, output: torch.Tensor) -> None:
                seen[layer] = output.sum(dim=2) / output.shape[2]

            return hook

        wanted = self.draft.shape.target_layers
        layers = self.target.model.layers
        handles = [layers[i].register_forward_hook(keep(i)) for i in wanted]
        try:
            self.target(input_ids=ids, use_cache=False)
        finally:
            for handle in handles:
                handle.remove()
        return torch.cat([seen[i] for i in wanted], dim=-1)

    @oracle_run()
    def rows(self, ids: Sequence[int], drafts: int) -> torch.Tensor:
        """Rows ``[P, H]`` of the block that begins with the last of the tokens."""
        aux = self.aux(torch.tensor([list(ids)]))[:, :-1]
        anchor, start = torch.tensor([[ids[-1]]]), torch.tensor([[len(ids) - 1]])
        places = self.draft.places(drafts)
        return self.draft.hidden(aux, anchor, start, places, self.embedding)[0, 0]

    @oracle_run()
    def say(self, prompt: Sequence[int], count: int) -> list[int]:
        """What the target says behind a prompt, greedily."""
        piece, cache, said = torch.tensor([list(prompt)]), None, []
        for _ in range(count):
            out = self.target(input_ids=piece, cache=cache, use_cache=True)
            cache = out.cache
            said.append(int(out.logits[0, -1].argmax()))
            piece = torch.tensor([said[-1:]])
        return said

    @oracle_run()
    def speculate(
        self, prompt: Sequence[int], tokens: Sequence[int], drafts: int
    ) -> BlockSpeculation:
        """Count rounds and accepted drafts while the target says ``tokens``.

        Args:
            prompt: of the request.
            tokens: what the target says, ``drafts`` more than are generated.
            drafts: of a round.
        """
        count, ids = len(tokens) - drafts, [*prompt, *tokens]
        aux = self.aux(torch.tensor([ids]))[0]
        done, rounds, accepted = 1, 0, [0] * drafts
        while done < count:
            known = len(prompt) + done
            found = self.draft.propose(
                aux[: known - 1], ids[known - 1], drafts, self.embedding, self.head
            )
            matched = 0
            while matched < drafts and found[matched] == ids[known + matched]:
                accepted[matched] += 1
                matched += 1
            rounds, done = rounds + 1, done + matched + 1
        return BlockSpeculation(rounds, tuple(accepted))
