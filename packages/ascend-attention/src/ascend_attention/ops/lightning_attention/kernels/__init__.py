"""Lightning attention in Triton: kernels over chunks for prompts, a loop over tokens for decode."""

from __future__ import annotations

from ascend_attention.ops.lightning_attention.kernels.chunks import lightning_attention
from ascend_attention.ops.lightning_attention.kernels.tokens import lightning_decode

__all__ = ["lightning_attention", "lightning_decode"]
