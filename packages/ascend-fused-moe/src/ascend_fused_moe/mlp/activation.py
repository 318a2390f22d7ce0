"""What stands between the two products of an expert."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.activation import (
    check_limit,
    check_situ,
    silu_and_mul_with_clamp,
    situ_and_mul,
    swiglu_oai_and_mul,
    swiglustep_and_mul,
)

__all__ = ["Activation", "ActivationKind"]


class ActivationKind(Enum):
    """The gated activations of experts; the value is the name in configurations."""

    SWIGLU = "swiglu"
    """``silu(gate) * up``, with a limit DeepSeek-V4's, which bounds both before."""

    SWIGLU_OAI = "swiglu_oai"
    """gpt-oss's, on alternating channels."""

    CLIPPED_SWIGLU = "clipped_swiglu"
    """The same on halves (MiniMax-M3)."""

    SWIGLU_STEP = "swiglu_step"
    """The limit follows the activation."""

    SITU = "situ"
    """Kimi-K3's: bounded smoothly by tanh, on halves."""


@dataclass(frozen=True)
class Activation:
    """A gated activation and its constants.

    Attributes:
        kind: which one.
        limit: of ``swiglu`` 0 or None switches it off; ``situ`` has none; the others need one.
        alpha: of the two that scale the sigmoid's argument.
        bias: of the same two: added to ``up``.
        beta: of ``situ``: bound of the gate.
        linear_beta: of ``situ``: bound of ``up``; None or 0 for none.

    Raises:
        InvalidInputError: a limit that is negative, or that the kind needs and is absent, or that
            it has not; bounds of ``situ`` that are not positive.
    """

    kind: ActivationKind = ActivationKind.SWIGLU
    limit: float | None = None
    alpha: float = 1.702
    bias: float = 1.0
    beta: float = 1.0
    linear_beta: float | None = None

    def __post_init__(self) -> None:
        check_limit(self.limit)
        if self.kind is ActivationKind.SITU:
            check_situ(self.beta, self.linear_beta)
            if self.limit:
                raise InvalidInputError(
                    f"situ with limit={self.limit}",
                    "it has no limit, its bounds are beta and linear_beta",
                    "Leave swiglu_limit out.",
                )
        elif self.kind is not ActivationKind.SWIGLU and not self.limit:
            raise InvalidInputError(
                f"activation {self.kind.value!r} with limit {self.limit}",
                "it has a positive limit",
                "Pass swiglu_limit of the model's config.",
            )

    def __call__(self, gate_up: torch.Tensor) -> torch.Tensor:
        """``[M, I]`` from ``gate_up [M, 2 * I]``, in its dtype, computed in float32."""
        if self.kind is ActivationKind.SWIGLU:
            return silu_and_mul_with_clamp(gate_up, self.limit)
        if self.kind is ActivationKind.SITU:
            return situ_and_mul(gate_up, self.beta, self.linear_beta)
        assert self.limit is not None
        if self.kind is ActivationKind.SWIGLU_STEP:
            return swiglustep_and_mul(gate_up, self.limit)
        interleaved = self.kind is ActivationKind.SWIGLU_OAI
        return swiglu_oai_and_mul(gate_up, self.alpha, self.limit, self.bias, interleaved)
