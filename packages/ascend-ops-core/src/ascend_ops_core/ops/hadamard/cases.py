"""Inputs of the Hadamard rotation."""

from __future__ import annotations

import torch

from ascend_ops_core.cases import Case

BF16, F16 = torch.bfloat16, torch.float16


def _case(name: str, *shape: int, block: int, dtype: torch.dtype, large: bool = False) -> Case:
    # Sums of `block` terms of order one, times 1 / sqrt(block).
    return Case(name, lambda new: (new.randn(*shape, dtype=dtype), block, block**-0.5), large=large)


CASES: dict[str, tuple[Case, ...]] = {
    "hadamard": (
        _case("no_rows", 0, 64, block=64, dtype=torch.float32),
        _case("one_channel", 3, 1, block=1, dtype=torch.float32),
        _case("four_channels", 65, 4, block=4, dtype=torch.float32),
        _case("narrow", 3, 63, 16, block=16, dtype=BF16),
        _case("blocks", 5, 7 * 32, block=32, dtype=F16),
        _case("heads", 63, 128, block=128, dtype=BF16),
        _case("two_sided", 3, 3 * 256, block=256, dtype=torch.float32),
        _case("two_sided_half", 2, 1024, block=1024, dtype=BF16),
        _case("widest", 1, 8192, block=8192, dtype=torch.float32),
        Case("strided", lambda new: (new.randn(64, 9, dtype=F16).t(), 64, 0.125)),
        _case("indexer_heads", 4096, 64, 128, block=128, dtype=BF16, large=True),
        _case("hidden_7168", 4096, 7168, block=1024, dtype=BF16, large=True),
        _case("hidden_4096", 4096, 4096, block=4096, dtype=BF16, large=True),
        _case("hidden_8192", 4096, 8192, block=8192, dtype=BF16, large=True),
    ),
}
