"""MiniMax-M3 for vLLM. Nothing is in it yet: the package exports only its version."""

__version__ = "0.1.0"
