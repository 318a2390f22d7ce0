"""Adaptations of vLLM itself, one module each: the upstream symbol, the reason, and a test."""
