"""vLLM's activations by this package's operators."""

from __future__ import annotations

import torch
from vllm.model_executor.layers.activation import (
    QuickGELU,
    SiluAndMul,
    SiluAndMulWithClamp,
    SituAndMul,
    SwigluOAIAndMul,
    SwigluStepAndMul,
)

from ascend_ops_core.ops import activation


class AscendQuickGELU(QuickGELU):
    """``x * sigmoid(1.702 * x)``."""

    def forward_oot(self, x: torch.Tensor) -> torch.Tensor:
        """See :func:`ascend_ops_core.ops.activation.quick_gelu`."""
        return activation.quick_gelu(x)


class AscendSiluAndMul(SiluAndMul):
    """``silu(gate) * up``."""

    def forward_oot(self, x: torch.Tensor) -> torch.Tensor:
        """See :func:`ascend_ops_core.ops.activation.silu_and_mul`."""
        return activation.silu_and_mul(x)


class AscendSiluAndMulWithClamp(SiluAndMulWithClamp):
    """The limited SwiGLU, also with a factor in the sigmoid and a bias of ``up``."""

    def forward_oot(self, x: torch.Tensor) -> torch.Tensor:
        """See :mod:`ascend_ops_core.ops.activation`."""
        if self.alpha == 1.0 and self.beta == 0.0:
            return activation.silu_and_mul_with_clamp(x, self.swiglu_limit)
        return activation.swiglu_oai_and_mul(
            x, self.alpha, self.swiglu_limit, self.beta, interleaved=False
        )


class AscendSituAndMul(SituAndMul):
    """Kimi-K3's SwiGLU, bounded by tanh."""

    def forward_oot(self, x: torch.Tensor) -> torch.Tensor:
        """See :func:`ascend_ops_core.ops.activation.situ_and_mul`."""
        return activation.situ_and_mul(x, self.beta, self.linear_beta)


class AscendSwigluOAIAndMul(SwigluOAIAndMul):
    """The activation of gpt-oss, gate and up channels alternating."""

    def forward_oot(self, x: torch.Tensor) -> torch.Tensor:
        """See :func:`ascend_ops_core.ops.activation.swiglu_oai_and_mul`."""
        return activation.swiglu_oai_and_mul(x, self.alpha, self.limit)


class AscendSwigluStepAndMul(SwigluStepAndMul):
    """A SwiGLU whose limit follows the activation."""

    def forward_oot(self, x: torch.Tensor) -> torch.Tensor:
        """See :func:`ascend_ops_core.ops.activation.swiglustep_and_mul`."""
        return activation.swiglustep_and_mul(x, self.limit)
