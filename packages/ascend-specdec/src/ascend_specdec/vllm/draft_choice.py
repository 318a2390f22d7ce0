"""How drafts are chosen from logits, for requests of any temperature in one batch."""

from __future__ import annotations

import torch
from vllm.v1.sample.metadata import SamplingMetadata

__all__ = ["DraftChoice"]

_GREEDY_BELOW = 1e-5


class DraftChoice:
    """Chooses the best token, or draws one where drafts are probabilistic.

    A draw follows the temperature alone. That is the law which verification is told, so what stands
    has the target's law whatever else a request asks for. Noise is independent of that of the
    verification. A request with a seed draws from its own generator.

    Args:
        metadata: of the batch.
        probabilistic: whether requests with a temperature draw.
        unused: requests whose drafts are thrown away, so that their generators must not move on.
    """

    def __init__(
        self,
        metadata: SamplingMetadata | None,
        probabilistic: bool = False,
        unused: frozenset[int] = frozenset(),
    ) -> None:
        self.greedy = not probabilistic or metadata is None or metadata.all_greedy
        self.metadata = metadata
        self.unused = unused

    def __call__(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens ``[R]`` int64 and their law ``[R, V]`` float32 of logits ``[R, V]``.

        The law of a greedy request is not read; it is that of temperature 1.
        """
        if self.greedy:
            return logits.argmax(dim=-1), logits
        assert self.metadata is not None
        temperature = self.metadata.temperature
        assert temperature is not None
        cold = temperature < _GREEDY_BELOW
        law = (logits.float() / torch.where(cold, 1.0, temperature).unsqueeze(1)).softmax(dim=-1)
        noise = torch.empty_like(law).exponential_()
        for request, generator in self.metadata.generators.items():
            if request not in self.unused:
                noise[request].exponential_(generator=generator)
        drawn = (law / noise).argmax(dim=-1)
        return torch.where(cold, logits.argmax(dim=-1), drawn), law

    def many(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Tokens ``[R, K]`` and their laws ``[R, K, V]`` of logits ``[R, K, V]``."""
        if self.greedy:
            return logits.argmax(dim=-1), None
        chosen = [self(logits[:, place]) for place in range(logits.shape[1])]
        tokens, laws = zip(*chosen, strict=True)
        return torch.stack(tokens, dim=1), torch.stack(laws, dim=1)
