"""Which linear layers of this process are split otherwise than by tensor parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ascend_ops_core.communication import Group


@dataclass(frozen=True)
class ParallelLayout:
    """Groups and choices beyond tensor parallelism; None and False leave vLLM's way.

    Attributes:
        mlp: ranks that share the dense MLPs; each has tokens of its own.
        o_proj: ranks that share the output projection of attention; each has tokens of its own.
        dsv4_o_proj: the same for both halves of DeepSeek-V4's grouped output projection.
        embedding: ranks that share the token embedding; each has tokens of its own.
        lm_head: ranks that share the output head; each has tokens of its own.
        context_parallel: attention's projections are whole on every rank, which has a part of
            every sequence.
        shared_expert_dp: shared experts are whole on every rank, which has tokens of its own.
    """

    mlp: Group | None = None
    o_proj: Group | None = None
    dsv4_o_proj: Group | None = None
    embedding: Group | None = None
    lm_head: Group | None = None
    context_parallel: bool = False
    shared_expert_dp: bool = False


_layout = ParallelLayout()


def parallel_layout() -> ParallelLayout:
    """The layout that layers are built for."""
    return _layout


def use_parallel_layout(layout: ParallelLayout) -> None:
    """Choose the layout of this process; before the model is built."""
    global _layout
    _layout = layout


@contextmanager
def built_with(layout: ParallelLayout) -> Iterator[None]:
    """Build layers for ``layout`` inside this block."""
    before = parallel_layout()
    use_parallel_layout(layout)
    try:
        yield
    finally:
        use_parallel_layout(before)
