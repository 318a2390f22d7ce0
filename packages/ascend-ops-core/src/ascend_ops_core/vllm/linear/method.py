"""The linear method of weights that are not quantized, and the layout of its weights."""

from __future__ import annotations

import re
from typing import Any

import torch
from vllm.model_executor.layers.linear import (
    UnquantizedLinearMethod,
    register_weight_loader_v2_supported_method,
)

from ascend_ops_core.devices import DeviceFacts, current_facts
from ascend_ops_core.ops.linear import npu, to_nz, unquantized_gemm
from ascend_ops_core.support import Support, refuse

# Weights that something else than a product reads, or that are no matrix to a product.
_READ_OTHERWISE: tuple[tuple[str, str], ...] = (
    (r"(^|\.)kv_b_proj$", "MLA splits it into the matrices that it absorbs"),
    (r"(^|\.)wo_a$", "a grouped product reads it as one matrix for each group"),
    (r"(^|\.)conv1d$", "a causal convolution reads it"),
    (r"(^|\.)(embed_tokens|lm_head)$", "an embedding may share it, which gathers rows"),
)


def nz_support(facts: DeviceFacts, prefix: str, weight: torch.Tensor) -> Support:
    """Whether a weight may be laid out as NZ, and why not.

    Args:
        facts: the device family.
        prefix: name of the layer.
        weight: ``[N, K]``.
    """
    for pattern, reason in _READ_OTHERWISE:
        if re.search(pattern, prefix):
            return refuse(f"{prefix}: {reason}")
    return npu.supports_to_nz(facts, weight)


def should_keep_nd(facts: DeviceFacts, prefix: str, weight: torch.Tensor) -> bool:
    """Whether a weight stays as it is (ND) instead of the cube's own layout (NZ)."""
    return not nz_support(facts, prefix, weight)


@register_weight_loader_v2_supported_method
class AscendUnquantizedLinearMethod(UnquantizedLinearMethod):
    """Products by :func:`ascend_ops_core.ops.linear.unquantized_gemm`; NZ weights on an NPU."""

    def process_weights_after_loading(self, layer: Any) -> None:
        """Lay the weight out as NZ where it is on an NPU and only products read it."""
        weight: torch.Tensor = layer.weight.data
        prefix = getattr(layer, "prefix", "")
        if weight.device.type == "npu" and not should_keep_nd(current_facts(), prefix, weight):
            layer.weight.data = to_nz(weight)

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """``x [..., K] @ weight.T + bias``."""
        return unquantized_gemm(x, layer.weight, bias)
