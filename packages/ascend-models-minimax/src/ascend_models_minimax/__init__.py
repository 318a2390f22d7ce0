"""MiniMax-M3 of the Ascend stack: text, images and video.

Importing this package needs nothing; serving a model needs vLLM, which comes with an extra:
``ascend-models-minimax[cpu]`` or ``[npu]``.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
