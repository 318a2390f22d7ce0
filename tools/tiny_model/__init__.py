"""Trains the demo checkpoint: a small DeepSeek-V4 that continues short stories."""
