"""Inputs of the router with groups."""

from __future__ import annotations

import math
from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
INF, NAN = math.inf, math.nan

# torch_npu does not say in which order equal experts and groups are taken, nor what NaN does.
_UNSPECIFIED = ("torch_npu",)


def _case(
    tokens: int,
    experts: int,
    top_k: int,
    groups: int,
    top_groups: int,
    scoring: str = "sigmoid",
    group_score: str = "top2",
    dtype: torch.dtype = F32,
    *,
    renormalize: bool = True,
) -> Case:
    settings = top_k, groups, top_groups, scoring, group_score, renormalize, 2.5
    return Case(
        f"{scoring}_{group_score}_{tokens}_{experts}_{top_k}_{groups}_{top_groups}",
        lambda new: (
            new.randn(tokens, experts, dtype=dtype, scale=3.0),
            # Biases of one sign: what torch_npu ranks the groups that are not chosen as is not
            # documented.
            new.rand(experts),
            *settings,
        ),
    )


def _model(name: str, tokens: int, experts: int, top_k: int, *settings: Any) -> Case:
    return Case(
        name,
        lambda new: (
            new.randn(tokens, experts, dtype=BF16),
            new.randn(experts),
            top_k,
            *settings,
        ),
        large=True,
    )


def _not_finite(group_score: str) -> Case:
    """Whole groups of NaN or minus infinity, infinite ones, and a bias of each."""
    rows = (
        (NAN, NAN, -INF, -INF, 1.0, NAN, -2.0, 0.5),
        (NAN,) * 8,
        (-INF,) * 8,
        (INF, -INF, INF, INF, NAN, 0.0, 1.0, INF),
    )
    bias = (0.5, NAN, 0.0, INF, -INF, 0.0, -1.0, 0.0)
    return Case(
        f"not_finite_{group_score}",
        lambda new: (
            new.tensor(rows, F32),
            new.tensor(bias, F32),
            3,
            4,
            2,
            "sigmoid",
            group_score,
            False,
            1.0,
        ),
        unspecified=_UNSPECIFIED,
    )


def _ties(new: Inputs, group_score: str) -> tuple[Any, ...]:
    """Three values, so that most choices are between equal experts and groups."""
    logits = new.randint(-1, 2, 33, 24).float()
    return logits, None, 7, 8, 3, "sigmoid", group_score, True, 1.0


CASES: dict[str, tuple[Case, ...]] = {
    "grouped_topk_routing": (
        Case(
            "no_rows",
            lambda new: (new.randn(0, 8), None, 2, 2, 1, "sigmoid", "top2", True, 1.0),
        ),
        Case(
            "one_group",
            lambda new: (new.randn(5, 9), new.rand(9), 4, 1, 1, "sigmoid", "top2", True, 1.0),
        ),
        Case(
            "groups_of_one",
            lambda new: (new.randn(5, 9), None, 3, 9, 4, "softmax", "max", False, 1.0),
        ),
        Case(
            "all_of_few_groups",
            lambda new: (new.randn(7, 20), new.rand(20), 8, 5, 2, "sigmoid", "top2", True, 1.0),
        ),
        _case(1, 64, 6, 8, 3),
        _case(63, 60, 4, 3, 2, "sigmoid", "max"),
        _case(65, 160, 6, 8, 3, "softmax", "max", BF16),
        _case(33, 60, 8, 12, 4, "sqrtsoftplus", "top2", F16),
        _case(130, 24, 5, 8, 2, renormalize=False),
        Case("ties_top2", lambda new: _ties(new, "top2"), unspecified=_UNSPECIFIED),
        Case("ties_max", lambda new: _ties(new, "max"), unspecified=_UNSPECIFIED),
        _not_finite("top2"),
        _not_finite("max"),
        Case(
            "strided",
            lambda new: (
                new.randn(9, 100, dtype=BF16)[:, 3:67],
                new.rand(64, dtype=BF16),
                5,
                4,
                2,
                "sigmoid",
                "top2",
                True,
                1.0,
            ),
        ),
        _model("v3", 4096, 256, 8, 8, 4, "sigmoid", "top2", True, 2.5),
        _model("v3_decode", 32, 256, 8, 8, 4, "sigmoid", "top2", True, 2.5),
        _model("v2", 1024, 160, 6, 8, 3, "softmax", "max", False, 16.0),
        _model("sqrtsoftplus", 1024, 256, 8, 8, 4, "sqrtsoftplus", "top2", True, 2.5),
        _model("many_groups", 1024, 512, 8, 16, 4, "sigmoid", "max", True, 2.5),
    ),
}
