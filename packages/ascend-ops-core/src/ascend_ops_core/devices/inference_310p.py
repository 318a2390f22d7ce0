"""310P: Atlas 300I Duo and the like. It has no Triton, so only torch_npu's operators run there."""

from __future__ import annotations

import torch

from ascend_ops_core.devices.figures import NO_PUBLIC_SOURCE, BlockSizes, Figure, listed

COMPILE_TARGET: Figure[str] = Figure(
    None,
    "vLLM-Ascend's 310P page says that triton-ascend does not support it, and ascendnpu-ir 1.2.0 "
    "has no target spec for it",
)

DTYPES = Figure(
    (torch.float32, torch.float16, torch.int8),
    "torch_npu 2.13.0's _op_plugin_docs.py: floating types of the Atlas inference series are "
    "float16 and float32 only; int8 from vLLM-Ascend's _310p/quantization (W8A8)",
)

KV_BLOCKS: dict[str, Figure[BlockSizes]] = {
    "decode": Figure(listed(64, 128), "vLLM-Ascend, _310p/attention/attention_v1.py"),
    "prefill": Figure(listed(64, 128), "vLLM-Ascend, _310p/attention/attention_v1.py"),
}

SOCS: dict[str, tuple[Figure[int], Figure[int]]] = {
    name: (Figure(None, NO_PUBLIC_SOURCE), Figure(None, NO_PUBLIC_SOURCE))
    for name in ("Ascend310P1", "Ascend310P3")
}

FIGURES: dict[str, Figure[int]] = {
    name: Figure(None, NO_PUBLIC_SOURCE)
    for name in (
        "cube_cores",
        "vector_cores",
        "ub_bytes",
        "l1_bytes",
        "l0a_bytes",
        "l0b_bytes",
        "l0c_bytes",
        "l2_bytes",
        "hbm_bytes",
    )
}
