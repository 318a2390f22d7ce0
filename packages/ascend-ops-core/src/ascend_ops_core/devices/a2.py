"""A2: Ascend 910B (Atlas 800I A2, 800T A2)."""

from __future__ import annotations

import torch

from ascend_ops_core.devices.figures import (
    BlockSizes,
    Figure,
    cores_of_socs,
    from_target_spec,
    listed,
)

COMPILE_TARGET = Figure("Ascend910B1", "--target of bishengir-compile in ascendnpu-ir 1.2.0")

# No fp8: triton-ascend 3.2.0 refuses those types unless it compiles for A5.
DTYPES = Figure(
    (
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.uint8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.bool,
    ),
    "triton-ascend 3.2.0 without its 910_95 switch; torch_npu 2.13.0's _op_plugin_docs.py lists "
    "float16, bfloat16, float32 and int8 for Atlas A2 and A3",
)

# docs of npu_fused_infer_attention_score(_v2), which name A2 and A3 alike
_FUSED = "torch_npu 2.13.0, _op_plugin_docs.py, npu_fused_infer_attention_score"
KV_BLOCKS = {
    "prefill": Figure(BlockSizes(128, 128, 512), f"{_FUSED}, Q_S > 1"),
    "decode": Figure(BlockSizes(16, 16, 512), f"{_FUSED}, Q_S = 1, 16-bit cache"),
    "decode_int8": Figure(BlockSizes(32, 32, 512), f"{_FUSED}, Q_S = 1, int8 cache"),
    "mla": Figure(listed(16, 128), f"{_FUSED}, query_rope and key_rope, ND cache"),
    "mla_nz": Figure(listed(128), f"{_FUSED}, query_rope and key_rope, NZ cache"),
    "mla_sparse_mode_4": Figure(listed(64, 128), f"{_FUSED}, query_rope and sparse_mode 4"),
}

SOCS = cores_of_socs(
    {
        "Ascend910B1": (24, 48),
        "Ascend910B2": (24, 48),
        "Ascend910B3": (20, 40),
        "Ascend910B4": (20, 40),
    }
)

FIGURES = from_target_spec("Ascend910B1", cube_cores=24, vector_cores=48, ub_kib=192, l0c_kib=128)
FIGURES["l2_bytes"] = Figure(
    192 * 1024 * 1024, "L2CacheByte of AscendC910B3 in catlass, include/acot/arch/arch.hpp"
)
FIGURES["hbm_bytes"] = Figure(
    64 * 1024**3,
    "SGLang documentation, Ascend NPU reference: Atlas 800I A2, 64 GB a die; other boards carry "
    "less, torch.npu.mem_get_info() tells",
)
