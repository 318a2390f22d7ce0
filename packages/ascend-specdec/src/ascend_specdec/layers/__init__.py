"""Modules that draft models are built of, without vLLM."""
