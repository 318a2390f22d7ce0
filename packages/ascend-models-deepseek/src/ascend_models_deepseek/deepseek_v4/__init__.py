"""DeepSeek-V4: config, checkpoint names, and the model on vLLM."""
