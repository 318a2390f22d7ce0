"""What a layer is given, and what it is after the ranks have shared their tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from ascend_ops_core.errors import InvalidInputError

__all__ = ["MoEPrepareOutput", "MoERouterInput"]


@dataclass(frozen=True)
class MoERouterInput:
    """One call of a layer on one rank.

    Attributes:
        hidden_states: ``[T, H]``; ``T`` may be 0.
        router_logits: ``[T, E]``.
        token_ids: ``[T]`` integer, for routers with a table of token ids, or None.
        active: ``[T]`` bool, False where a row is padding and visits no expert, all real rows
            before all others; None where every row is real.
        adapters: ``[T]`` integer, the adapter of each token, negative for none; None where no
            token has one.

    Raises:
        InvalidInputError: another number of rows, or a mask that is not bool.
    """

    hidden_states: torch.Tensor
    router_logits: torch.Tensor
    token_ids: torch.Tensor | None = None
    active: torch.Tensor | None = None
    adapters: torch.Tensor | None = None

    def __post_init__(self) -> None:
        rows = self.hidden_states.shape[0]
        for name in ("router_logits", "token_ids", "active", "adapters"):
            tensor = getattr(self, name)
            if tensor is not None and tensor.shape[0] != rows:
                raise InvalidInputError(
                    f"{name} of {tensor.shape[0]} rows",
                    f"hidden_states has {rows}",
                    "Pass the same tokens everywhere.",
                )
        if self.active is not None and self.active.dtype != torch.bool:
            raise InvalidInputError(
                f"active of {self.active.dtype}", "it is a bool mask", "Convert it with .bool()."
            )

    @property
    def tokens(self) -> int:
        """Number of rows."""
        return self.hidden_states.shape[0]


@dataclass(frozen=True)
class MoEPrepareOutput:
    """The rows that this rank routes and dispatches.

    Attributes:
        rows: them, in the form of the layer's input.
        shape: ``[T, H]`` of what the layer was given, and will return.
        tokens: tokens of each data-parallel part.
    """

    rows: MoERouterInput
    shape: torch.Size
    tokens: tuple[int, ...]
