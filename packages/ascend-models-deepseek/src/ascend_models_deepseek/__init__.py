"""DeepSeek models of the Ascend stack; today DeepSeek-V4.

Importing this package needs torch; serving a model needs vLLM, which comes with an extra:
``ascend-models-deepseek[cpu]`` or ``[npu]``.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
