"""vLLM's norms by this package's operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm, RMSNormGated
from vllm.model_executor.utils import set_weight_attrs
from vllm.third_party.flash_linear_attention.ops.kda import FusedRMSNormGated

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.gated_norm import layer_norm_gated, rms_norm_gated
from ascend_ops_core.ops.norm import add_rms_norm, gemma_rms_norm, rms_norm, rms_norm_bias

__all__ = [
    "AscendFusedRMSNormGated",
    "AscendGemmaRMSNorm",
    "AscendRMSNorm",
    "AscendRMSNormGated",
    "LayerNormFn",
]


class AscendRMSNorm(RMSNorm):
    """RMS norm, with a bias where the checkpoint's quantisation left one.

    Outlier suppression moves the mean of the activations into ``norm.bias``; such a checkpoint
    lists it in its ``quant_description``. A bias that is never loaded is not added.
    """

    def __init__(self, hidden_size: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(hidden_size, *args, **kwargs)
        self.bias: nn.Parameter | None = None
        self.bias_loaded = False
        if _checkpoint_has_norm_bias():
            values = torch.zeros(hidden_size, dtype=self.weight.dtype)
            self.bias = nn.Parameter(values, requires_grad=False)
            set_weight_attrs(self.bias, {"weight_loader": self._bias_weight_loader})

    def _bias_weight_loader(self, param: nn.Parameter, loaded_weight: torch.Tensor) -> None:
        if param.shape != loaded_weight.shape:
            raise InvalidInputError(
                f"norm.bias of shape {list(loaded_weight.shape)}",
                f"the layer's has {list(param.shape)}",
                "Check that the checkpoint belongs to this config.",
            )
        param.data.copy_(loaded_weight)
        self.bias_loaded = True

    def forward_oot(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """See vLLM's class; norms over a part of the channels stay with its own definition."""
        if self.variance_size_override is not None:
            return self.forward_native(x, residual)
        weight = self.weight.data if self.has_weight else None
        bias = self.bias.data if self.bias is not None and self.bias_loaded else None
        if residual is not None:
            return add_rms_norm(x, residual, weight, bias, self.variance_epsilon)
        if bias is not None:
            return rms_norm_bias(x, weight, bias, self.variance_epsilon)
        return rms_norm(x, weight, self.variance_epsilon)


class AscendGemmaRMSNorm(GemmaRMSNorm):
    """RMS norm that multiplies with ``1 + weight``."""

    def forward_oot(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """See vLLM's class."""
        if residual is None:
            return gemma_rms_norm(x, self.weight.data, self.variance_epsilon)
        total = x + residual
        return gemma_rms_norm(total, self.weight.data, self.variance_epsilon), total


class AscendRMSNormGated(RMSNormGated):
    """RMS norm by groups of channels with a gate in front of it or behind it."""

    def forward_oot(self, x: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
        """See vLLM's class."""
        return rms_norm_gated(
            x,
            z,
            self.weight.data,
            self.bias,
            eps=self.eps,
            group_size=self.group_size,
            norm_before_gate=self.norm_before_gate,
            activation=self.activation,
        )


class AscendFusedRMSNormGated(FusedRMSNormGated):
    """RMS norm with a gate behind it, as Kimi Delta Attention and FLA's layers have it."""

    def forward_oot(
        self,
        x: torch.Tensor,
        g: torch.Tensor,
        residual: torch.Tensor | None = None,
        prenorm: bool = False,
        residual_in_fp32: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """See vLLM's class; with ``prenorm`` the sum is returned as well."""
        total = x
        if residual is not None:
            total = x.float() + residual.float()
        weight = None if self.weight is None else self.weight.data
        y = rms_norm_gated(total, g, weight, eps=self.eps, activation=self.activation).to(x.dtype)
        if not prenorm:
            return y
        kept = (
            torch.float32 if residual_in_fp32 else x.dtype if residual is None else residual.dtype
        )
        return y, total.to(kept)


class LayerNormFn:
    """FLA's norm with an optional gate as one call: LayerNorm, or RMS norm if asked for."""

    @staticmethod
    def apply(
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        z: torch.Tensor | None = None,
        eps: float = 1e-6,
        group_size: int | None = None,
        norm_before_gate: bool = True,
        is_rms_norm: bool = False,
        activation: str = "swish",
    ) -> torch.Tensor:
        """See :func:`ascend_ops_core.ops.gated_norm.layer_norm_gated`."""
        norm = rms_norm_gated if is_rms_norm else layer_norm_gated
        return norm(
            x,
            z,
            weight,
            bias,
            eps=eps,
            group_size=group_size,
            norm_before_gate=norm_before_gate,
            activation=activation,
        )


def _checkpoint_has_norm_bias() -> bool:
    config = get_current_vllm_config_or_none()
    description = getattr(getattr(config, "quant_config", None), "quant_description", None) or {}
    return any("norm.bias" in name for name in description)
