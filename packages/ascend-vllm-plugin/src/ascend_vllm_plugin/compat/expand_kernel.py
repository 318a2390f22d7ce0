"""Repairs vLLM's CPU kernel that spreads sampling parameters over draft tokens.

Upstream symbol: ``vllm.utils.cpu_triton_utils.expand_kernel`` (0.27.1). It hands the C++ kernel an
int64 copy of the output and drops it, so that temperature, top-p and top-k of speculating requests
are uninitialised memory: sampled text becomes noise, and top-k can end the engine.
"""

from __future__ import annotations

from typing import Any

import torch


class ExpandKernel:
    """Called like the Triton kernel it stands in for: ``kernel[grid](...)``."""

    def __getitem__(self, grid: Any) -> ExpandKernel:
        return self

    def __call__(
        self,
        output: torch.Tensor,
        values: torch.Tensor,
        cumulative: torch.Tensor,
        replace_from: float,
        replace_to: float,
        **unused: Any,
    ) -> None:
        """Write ``values[r]`` to each draft token of request r.

        Args:
            output: ``[tokens]``, any dtype; overwritten.
            values: ``[requests]``, of the same dtype.
            cumulative: ``[requests]`` integer, tokens up to and including each request.
            replace_from: a value that is written as ``replace_to``.
            replace_to: see ``replace_from``.
            unused: launch options of the Triton kernel.
        """
        counts = torch.diff(cumulative, prepend=cumulative.new_zeros(1)).long()
        chosen = values.masked_fill(values == replace_from, replace_to)
        output.copy_(torch.repeat_interleave(chosen, counts))


def repair_expand_kernel() -> None:
    """Put ``ExpandKernel`` where vLLM's CPU runner looks; may be called repeatedly."""
    from vllm.utils import cpu_triton_utils

    cpu_triton_utils.expand_kernel = ExpandKernel()
