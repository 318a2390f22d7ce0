"""Deterministic token prompts for tests, which models of all packages share."""

from ascend_ops_core.testing.language_models import random_prompt

__all__ = ["random_prompt"]
