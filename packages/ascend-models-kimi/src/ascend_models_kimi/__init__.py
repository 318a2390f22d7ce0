"""Kimi models of the Ascend stack: Kimi-Linear.

Importing this package needs nothing; serving a model needs vLLM, which comes with an extra:
``ascend-models-kimi[cpu]`` or ``[npu]``.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
