"""Adaptors to vLLM: cache layers, attention backends and metadata builders."""
