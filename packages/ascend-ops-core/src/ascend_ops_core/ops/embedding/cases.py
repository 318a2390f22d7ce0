"""Inputs of the vocabulary range."""

from __future__ import annotations

import torch

from ascend_ops_core.cases import Case

I32 = torch.int32

CASES: dict[str, tuple[Case, ...]] = {
    "mask_vocab_range": (
        Case("no_ids", lambda new: (new.randint(0, 9, 0), 0, 5, 0, 9, 9)),
        Case("one", lambda new: (new.randint(5, 6, 1), 5, 10, 2, 20, 20)),
        Case("odd", lambda new: (new.randint(-1, 100, 63), 32, 64, 0, 100, 100)),
        Case("added", lambda new: (new.randint(0, 130, 65), 64, 97, 31, 100, 116)),
        Case("int32", lambda new: (new.randint(0, 130, 7, 9, dtype=I32), 0, 64, 3, 100, 116)),
        Case("padding", lambda new: (new.full(-1, 3, dtype=torch.int64), 0, 64, 0, 64, 64)),
        Case("strided", lambda new: (new.randint(0, 99, 40, 5)[:, 2], 10, 60, 0, 99, 99)),
        Case("many", lambda new: (new.randint(0, 151936, 3000), 75968, 151936, 0, 151936, 151936)),
        Case(
            "v4",
            lambda new: (new.randint(0, 129280, 65536), 64640, 129280, 0, 129280, 129280),
            large=True,
        ),
    ),
}
