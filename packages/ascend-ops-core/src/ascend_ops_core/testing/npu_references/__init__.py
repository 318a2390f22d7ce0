"""What torch_npu's operators compute, written in torch from the wheel's documentation.

A reference takes CPU tensors, refuses what the documentation refuses (dtypes, ranks, sizes), and
says "assumed" in its docstring wherever the documentation is silent. Nothing here was compared
with an NPU. Where documentation gives no rounding, sums and products are in float32 and the result
is rounded once to its dtype.
"""

from __future__ import annotations

from ascend_ops_core.testing.npu_references import (
    activation,
    attention,
    formats,
    grouped_matmul,
    hyper_connection,
    latent_prologue,
    lightning_indexer,
    linear_attention,
    matmul,
    moe,
    moe_distribution,
    norm,
    norm_quantization,
    quantization,
    rotary,
    sampling,
    scatter,
    swiglu_quantization,
)
from ascend_ops_core.testing.npu_references.registry import REFERENCES, Reference, on_cpu, run

__all__ = [
    "REFERENCES",
    "Reference",
    "activation",
    "attention",
    "formats",
    "grouped_matmul",
    "hyper_connection",
    "latent_prologue",
    "lightning_indexer",
    "linear_attention",
    "matmul",
    "moe",
    "moe_distribution",
    "norm",
    "norm_quantization",
    "on_cpu",
    "quantization",
    "rotary",
    "run",
    "sampling",
    "scatter",
    "swiglu_quantization",
]
