"""Collectives of expert parallelism as operators that a compiled graph sees, and stand-ins.

The shapes of the results depend on the tokens of every data-parallel part, so those are arguments;
what the calls without ``maybe`` need beside them is bound once by :func:`sequence_parallel`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from ascend_ops_core import communication
from ascend_ops_core.communication import Group, ep_local_sizes
from ascend_ops_core.errors import InvalidInputError

_library = torch.library.Library("ascend_ops_core", "FRAGMENT")
_groups: dict[str, Group] = {}


@dataclass(frozen=True)
class SequenceParallel:
    """How the tokens of one step lie on the ranks.

    Attributes:
        group: name under which :func:`register_group` knows the ranks.
        tokens: tokens of each data-parallel part.
        parts: ranks that share the tokens of one part.
    """

    group: str
    tokens: tuple[int, ...]
    parts: int


_step: ContextVar[SequenceParallel | None] = ContextVar("ascend_sequence_parallel", default=None)


def register_group(name: str, group: Group) -> None:
    """Let operators find ``group`` by ``name``; a later group of the name replaces it."""
    _groups[name] = group


@contextmanager
def sequence_parallel(group: str, tokens: Sequence[int], parts: int) -> Iterator[None]:
    """Inside this block the tokens are shared out over the ranks of ``group``.

    Args:
        group: a name given to :func:`register_group`.
        tokens: tokens of each data-parallel part in this step.
        parts: ranks that share the tokens of one part.

    Raises:
        InvalidInputError: no group of this name.
    """
    _group(group)
    token = _step.set(SequenceParallel(group, tuple(tokens), parts))
    try:
        yield
    finally:
        _step.reset(token)


def maybe_all_gather_and_maybe_unpad(x: torch.Tensor, enabled: bool = True) -> torch.Tensor:
    """All tokens out of the ranks' shares, without padding; ``x`` itself outside of a block.

    Args:
        x: ``[n, ...]``; see :func:`ascend_ops_core.communication.all_gather_and_unpad`.
        enabled: False where this layer's input is whole already.
    """
    step = _step.get()
    if step is None or not enabled:
        return x
    gathered: torch.Tensor = torch.ops.ascend_ops_core.all_gather_and_unpad(
        x, list(step.tokens), step.parts, step.group
    )
    return gathered


def maybe_pad_and_reduce(x: torch.Tensor, enabled: bool = True) -> torch.Tensor:
    """This rank's share of the sum over the ranks; ``x`` itself outside of a block.

    Args:
        x: ``[sum(tokens), ...]``; see :func:`ascend_ops_core.communication.pad_and_reduce`.
        enabled: False where the sum is made elsewhere.
    """
    step = _step.get()
    if step is None or not enabled:
        return x
    rank = _group(step.group).rank_in_group
    share: torch.Tensor = torch.ops.ascend_ops_core.pad_and_reduce(
        x, list(step.tokens), step.parts, rank, step.group
    )
    return share


def _group(name: str) -> Group:
    if name not in _groups:
        raise InvalidInputError(
            f"group {name!r}", f"known are {', '.join(_groups) or 'none'}", "Register it."
        )
    return _groups[name]


def _all_gather(x: torch.Tensor, tokens: list[int], parts: int, group: str) -> torch.Tensor:
    return communication.all_gather_and_unpad(x, tokens, parts, _group(group)).clone()


def _pad_and_reduce(
    x: torch.Tensor, tokens: list[int], parts: int, rank: int, group: str
) -> torch.Tensor:
    return communication.pad_and_reduce(x, tokens, parts, _group(group)).clone()


def _define(name: str, schema: str, call: Any, fake: Any) -> None:
    _library.define(f"{name}{schema}")
    for key in ("CPU", "PrivateUse1"):
        _library.impl(name, call, key)
    torch.library.register_fake(f"ascend_ops_core::{name}", fake, lib=_library)


_define(
    "all_gather_and_unpad",
    "(Tensor x, SymInt[] tokens, int parts, str group) -> Tensor",
    _all_gather,
    lambda x, tokens, parts, group: x.new_empty(sum(tokens), *x.shape[1:]),
)
_define(
    "pad_and_reduce",
    "(Tensor x, SymInt[] tokens, int parts, int rank, str group) -> Tensor",
    _pad_and_reduce,
    lambda x, tokens, parts, rank, group: x.new_empty(
        ep_local_sizes(tokens, parts)[rank // parts], *x.shape[1:]
    ),
)


class DummyFusionOp:
    """Stands where vLLM's fusion passes look for a CUDA operator while they are imported.

    Attributes:
        name: the operator that is not there.
        default: itself, as operators have overloads.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.default = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: a pattern may name the operator, nothing may run it."""
        raise InvalidInputError(
            f"torch.ops._C.{self.name}",
            "this build of vLLM does not have it, and a stand-in only lets fusion passes load",
            "Call the operator of ascend_ops_core.ops instead.",
        )

    def __repr__(self) -> str:
        return f"<stand-in for torch.ops._C.{self.name}>"


_FUSION_OPERATORS = (
    "rms_norm",
    "fused_add_rms_norm",
    "static_scaled_fp8_quant",
    "dynamic_scaled_fp8_quant",
    "dynamic_per_token_scaled_fp8_quant",
    "rms_norm_static_fp8_quant",
    "fused_add_rms_norm_static_fp8_quant",
    "rms_norm_dynamic_per_token_quant",
    "silu_and_mul",
    "silu_and_mul_quant",
)


def register_dummy_fusion_op() -> list[str]:
    """Put a :class:`DummyFusionOp` in the place of each operator that vLLM's build lacks.

    Operators that exist are left alone; a second call finds the stand-ins of the first.

    Returns:
        Names of the operators that were put there now.
    """
    placed = []
    for name in _FUSION_OPERATORS:
        if not hasattr(torch.ops._C, name):
            setattr(torch.ops._C, name, DummyFusionOp(name))
            placed.append(name)
    return placed
