"""Tiny checkpoints and the transformers oracle that the tests compare with.

Needs transformers and safetensors (extra `test`); never imports vLLM.
"""

from ascend_models_minimax.testing.oracle_m3 import M3MtpOracle, M3Oracle
from ascend_models_minimax.testing.tiny_m3 import M3_SPECS, TinyM3Spec, write_m3_checkpoint

__all__ = ["M3_SPECS", "M3MtpOracle", "M3Oracle", "TinyM3Spec", "write_m3_checkpoint"]
