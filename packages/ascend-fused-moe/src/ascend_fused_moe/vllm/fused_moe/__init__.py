"""Layers of experts of vLLM's own models: its runner and its method, by this package."""
