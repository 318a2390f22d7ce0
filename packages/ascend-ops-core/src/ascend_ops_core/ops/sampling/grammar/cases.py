"""Inputs of the grammar bitmask."""

from __future__ import annotations

from typing import Any

import torch

from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
_LOW, _HIGH = -(2**31), 2**31


def _inputs(
    new: Inputs, rows: int, vocabulary: int, masks: list[int], dtype: torch.dtype = F32
) -> tuple[Any, ...]:
    words = -(-vocabulary // 32)
    return (
        new.randn(rows, vocabulary, dtype=dtype),
        new.randint(_LOW, _HIGH, len(masks), words, dtype=torch.int32),
        new.tensor(masks, torch.int32),
    )


def _strided(new: Inputs) -> tuple[Any, ...]:
    logits = new.randn(8, 90)[::2, 7:72]
    bitmask = new.randint(_LOW, _HIGH, 2, 8, dtype=torch.int32)[:, ::2]
    return logits, bitmask, new.tensor([3, 9, 1, 9], torch.int64)[::2]


CASES: dict[str, tuple[Case, ...]] = {
    "apply_grammar_bitmask": (
        Case("no_masks", lambda new: _inputs(new, 3, 63, [])),
        Case("one", lambda new: _inputs(new, 1, 1, [0])),
        Case("odd", lambda new: _inputs(new, 5, 63, [4, 0, 2], F16)),
        Case("padded", lambda new: _inputs(new, 3, 65, [-1, 2, -1])),
        Case("ragged", lambda new: _inputs(new, 4, 1000, [1, 3], BF16)),
        Case("strided", _strided),
        Case("many_blocks", lambda new: _inputs(new, 2, 9001, [1])),
        Case("v4", lambda new: _inputs(new, 64, 129280, list(range(64))), large=True),
        Case("qwen_bf16", lambda new: _inputs(new, 64, 151936, [3, 5], BF16), large=True),
    )
}
