"""Reading checkpoints: configs, tables of tensors, headers."""
