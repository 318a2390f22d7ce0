"""A5: Ascend 950PR and 950DT. Figures are those of the largest PR part, Ascend950PR_9599."""

from __future__ import annotations

import torch

from ascend_ops_core.devices.a2 import DTYPES as _A2_DTYPES
from ascend_ops_core.devices.figures import (
    NO_PUBLIC_SOURCE,
    BlockSizes,
    Figure,
    cores_of_socs,
    from_target_spec,
)

COMPILE_TARGET = Figure("Ascend950PR_9599", "--target of bishengir-compile-a5, ascendnpu-ir 1.2.0")

DTYPES = Figure(
    (*(_A2_DTYPES.value or ()), torch.float8_e4m3fn, torch.float8_e5m2),
    "triton-ascend 3.2.0 with its 910_95 switch; torch_npu 2.13.0's _op_plugin_docs.py adds "
    "float8_e4m3fn and float8_e5m2 (and hifloat8 and float4_e2m1, which torch lacks or packs) for "
    "Ascend 950PR and 950DT",
)

KV_BLOCKS: dict[str, Figure[BlockSizes]] = {
    name: Figure(
        None, "the block sizes in torch_npu 2.13.0's _op_plugin_docs.py name A2 and A3 only"
    )
    for name in ("prefill", "decode", "decode_int8", "mla", "mla_nz", "mla_sparse_mode_4")
}

SOCS = cores_of_socs(
    {
        "Ascend950PR_9599": (36, 72),
        "Ascend950PR_9589": (32, 64),
        "Ascend950PR_9579": (28, 56),
        "Ascend950DT_9591": (36, 72),
    }
)

FIGURES = from_target_spec(
    "Ascend950PR_9599", cube_cores=36, vector_cores=72, ub_kib=248, l0c_kib=256
)
FIGURES["l2_bytes"] = Figure(None, NO_PUBLIC_SOURCE)
FIGURES["hbm_bytes"] = Figure(
    None, "press reports differ (112 and 128 GB for 950PR, 144 for 950DT), no document settles it"
)
