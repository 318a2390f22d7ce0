"""Sparse attention over paged, compressed caches for the Ascend stack; needs torch only.

The vLLM adaptors live in :mod:`ascend_attention.vllm` and are imported by models and plugin only.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
