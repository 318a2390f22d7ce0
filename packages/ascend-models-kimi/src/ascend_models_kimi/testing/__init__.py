"""Tiny checkpoints and the oracles that the tests compare with.

Needs transformers and safetensors (extra `test`); never imports vLLM.
"""

from ascend_models_kimi.testing.oracle_k3 import K3Oracle
from ascend_models_kimi.testing.oracle_k3_dspark import K3DSparkOracle
from ascend_models_kimi.testing.oracle_kimi_linear import KimiLinearOracle
from ascend_models_kimi.testing.tiny_k3 import K3_SPECS, TinyK3Spec, write_k3_checkpoint
from ascend_models_kimi.testing.tiny_k3_dspark import TinyK3DSparkSpec, write_k3_dspark
from ascend_models_kimi.testing.tiny_kimi_linear import (
    KIMI_LINEAR_SPECS,
    TinyKimiLinearSpec,
    write_kimi_linear_checkpoint,
)

__all__ = [
    "K3_SPECS",
    "KIMI_LINEAR_SPECS",
    "K3DSparkOracle",
    "K3Oracle",
    "KimiLinearOracle",
    "TinyK3DSparkSpec",
    "TinyK3Spec",
    "TinyKimiLinearSpec",
    "write_k3_checkpoint",
    "write_k3_dspark",
    "write_kimi_linear_checkpoint",
]
