"""Tiny checkpoints and the oracles that the tests compare with.

Needs transformers and safetensors (extra `test`); never imports vLLM.
"""

from ascend_models_kimi.testing.oracle_kimi_linear import KimiLinearOracle
from ascend_models_kimi.testing.tiny_kimi_linear import (
    KIMI_LINEAR_SPECS,
    TinyKimiLinearSpec,
    write_kimi_linear_checkpoint,
)

__all__ = [
    "KIMI_LINEAR_SPECS",
    "KimiLinearOracle",
    "TinyKimiLinearSpec",
    "write_kimi_linear_checkpoint",
]
