"""A linear layer as two steps, one for the vector cores and one for the matrix cores."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch

from ascend_ops_core.vllm.linear.parallel_ops import CustomLinearOp, Output
from ascend_ops_core.vllm.linear.table import get_replicated_op, plain_op

Quantized = tuple[torch.Tensor, torch.Tensor | None]


@runtime_checkable
class TwoStepMethod(Protocol):
    """A linear method with dynamic 8-bit activations (W8A8), which can be taken apart."""

    def quantize(self, layer: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``x`` as int8 ``[T, K]``, and a scale for each token ``[T]``."""

    def matmul(
        self,
        layer: Any,
        x: torch.Tensor,
        scale: torch.Tensor,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """The product of quantized rows with the layer's weight, in ``dtype``."""


class CVLinearWrapper(torch.nn.Module):
    """Splits a linear layer into :meth:`quantize` and :meth:`matmul`.

    The two steps use different cores, so a scheduler can run the first of one layer beside the
    second of another. ``wrapper(x)`` is what ``layer(x)`` is. Where the layer's method does not
    quantize activations dynamically, the first step hands the input on. Every other attribute is
    the layer's.

    Args:
        layer: one of vLLM's linear layers; it is not changed.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        self.op = _op_of(layer)
        self.method = _detect_w8a8_dynamic(layer)
        self.communication = _detect_communication(layer)

    @property
    def is_w8a8_dynamic(self) -> bool:
        """Whether the first step quantizes."""
        return self.method is not None

    def quantize(self, x: torch.Tensor) -> Quantized:
        """First step: what the layer communicates before its product, then the quantization.

        Returns:
            int8 ``[T, K]`` with a scale for each token; or the rows unchanged, and None.
        """
        x = self.op.prepare(x)
        return (x, None) if self.method is None else self.method.quantize(self.layer, x)

    def matmul(self, quantized: Quantized, dtype: torch.dtype) -> Output:
        """Second step: the product, then what the layer communicates after it.

        Args:
            quantized: what :meth:`quantize` returned.
            dtype: of the output.
        """
        x, scale = quantized
        if self.method is None or scale is None:
            y = self.op.product(x)
        else:
            y = self.method.matmul(self.layer, x, scale, self.op.bias, dtype)
        return self.op.with_bias(self.op.finish(y))

    def forward(self, x: torch.Tensor) -> Output:
        """Both steps."""
        return self.matmul(self.quantize(x), x.dtype)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "layer":
                raise
            return getattr(self.layer, name)


def _op_of(layer: Any) -> CustomLinearOp:
    op = getattr(layer, "custom_op", None)
    if op is not None:
        found: CustomLinearOp = op
        return found
    if hasattr(layer, "reduce_results"):
        return plain_op("row", layer)
    return (
        plain_op("column", layer) if hasattr(layer, "gather_output") else get_replicated_op(layer)
    )


def _detect_w8a8_dynamic(layer: Any) -> TwoStepMethod | None:
    method = getattr(layer, "quant_method", None)
    # vLLM-style methods may hold the scheme that does the work.
    for candidate in (
        method,
        getattr(method, "quant_method", None),
        getattr(layer, "scheme", None),
    ):
        if isinstance(candidate, TwoStepMethod):
            return candidate
    return None


def _detect_communication(layer: Any) -> str:
    op = getattr(layer, "custom_op", None)
    if op is not None and not op.local:
        return type(op).__name__
    if getattr(layer, "tp_size", 1) == 1 or (op is not None and op.local):
        return "none"
    if getattr(layer, "gather_output", False):
        return "all_gather"
    return "all_reduce" if getattr(layer, "reduce_results", False) else "none"
