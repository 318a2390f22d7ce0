"""Tiny checkpoints of models that vLLM itself brings, and transformers as their reference."""

from ascend_vllm_plugin.testing.bailing import (
    BAILING_SPECS,
    BailingMtpOracle,
    BailingOracle,
    TinyBailingSpec,
    write_bailing_checkpoint,
)
from ascend_vllm_plugin.testing.qwen3_next import (
    QWEN3_NEXT_SPECS,
    Qwen3NextMtpOracle,
    Qwen3NextOracle,
    TinyQwen3NextSpec,
    write_qwen3_next_checkpoint,
)

__all__ = [
    "BAILING_SPECS",
    "QWEN3_NEXT_SPECS",
    "BailingMtpOracle",
    "BailingOracle",
    "Qwen3NextMtpOracle",
    "Qwen3NextOracle",
    "TinyBailingSpec",
    "TinyQwen3NextSpec",
    "write_bailing_checkpoint",
    "write_qwen3_next_checkpoint",
]
