"""Block drafts with a Qwen3 backbone: DFlash, DFlash2 and DSpark."""
