"""Block drafts in plain, differentiable tensor code, for tests and for training tiny ones."""
