"""DeepSeek models of the Ascend stack: DeepSeek-V4, and V3 with R1.

Importing this package needs torch; serving a model needs vLLM, which comes with an extra:
``ascend-models-deepseek[cpu]`` or ``[npu]``.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
