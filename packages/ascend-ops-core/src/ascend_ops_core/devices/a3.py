"""A3: Ascend 910C, two dies a card, each die one device (Atlas 800I A3, 800T A3)."""

from __future__ import annotations

from ascend_ops_core.devices.a2 import DTYPES as DTYPES  # the same compiler path and documents
from ascend_ops_core.devices.a2 import KV_BLOCKS as KV_BLOCKS
from ascend_ops_core.devices.figures import (
    NO_PUBLIC_SOURCE,
    Figure,
    cores_of_socs,
    from_target_spec,
)

COMPILE_TARGET = Figure("Ascend910_9392", "--target of bishengir-compile in ascendnpu-ir 1.2.0")

SOCS = cores_of_socs(
    {
        "Ascend910_9362": (20, 40),
        "Ascend910_9372": (20, 40),
        "Ascend910_9381": (24, 48),
        "Ascend910_9382": (24, 48),
        "Ascend910_9391": (24, 48),
        "Ascend910_9392": (24, 48),
    }
)

FIGURES = from_target_spec(
    "Ascend910_9392", cube_cores=24, vector_cores=48, ub_kib=192, l0c_kib=128
)
FIGURES["l2_bytes"] = Figure(None, NO_PUBLIC_SOURCE)
FIGURES["hbm_bytes"] = Figure(
    64 * 1024**3, "SGLang documentation, Ascend NPU reference: Atlas 800I A3, 64 GB a die"
)
