"""Inputs of the token counts."""

from __future__ import annotations

import torch

from ascend_ops_core.cases import Case

CASES: dict[str, tuple[Case, ...]] = {
    "token_bin_counts_and_mask": (
        Case("no_rows", lambda new: (new.randint(0, 63, 0, 5), 63)),
        Case("no_tokens", lambda new: (new.randint(0, 63, 3, 0), 63)),
        Case("one", lambda new: (new.tensor([[0]], torch.int64), 1)),
        Case("repeated", lambda new: (new.randint(0, 5, 2, 65), 65)),
        Case("odd", lambda new: (new.randint(0, 1000, 3, 63, dtype=torch.int32), 1000)),
        Case(
            "padded",
            lambda new: (
                new.tensor([[3, 70, 3, -1, 62, 63], [63, 63, 63, 0, 0, 0]], torch.int64),
                63,
            ),
        ),
        Case("strided", lambda new: (new.randint(0, 90, 40, 3)[::2].T, 90)),
        Case("many_parts", lambda new: (new.randint(0, 40, 2, 300), 33)),
        Case("v4_prompts", lambda new: (new.randint(0, 129280, 32, 4096), 129280), large=True),
        Case(
            "qwen_outputs",
            lambda new: (new.randint(0, 151936, 384, 256, dtype=torch.int32), 151936),
            large=True,
        ),
    ),
}
