"""Inputs of the routers."""

from __future__ import annotations

import math

import torch
from ascend_ops_core.cases import Case, Inputs

BF16, F16, I32 = torch.bfloat16, torch.float16, torch.int32
INF, NAN = math.inf, math.nan

# torch_npu does not say in which order equal experts are taken.
_TIED = ("torch_npu",)


def _topk(
    tokens: int,
    experts: int,
    top_k: int,
    scoring: str = "sqrtsoftplus",
    dtype: torch.dtype = torch.float32,
) -> Case:
    return Case(
        f"{scoring}_{tokens}_{experts}_{top_k}",
        lambda new: (
            new.randn(tokens, experts, dtype=dtype, scale=3.0),
            new.randn(experts),
            top_k,
            scoring,
            True,
            2.5,
        ),
    )


def _model(name: str, tokens: int, experts: int, top_k: int, scoring: str) -> Case:
    return Case(
        name,
        lambda new: (
            new.randn(tokens, experts, dtype=BF16),
            new.randn(experts),
            top_k,
            scoring,
            True,
            2.5,
        ),
        large=True,
    )


def _hash(name: str, tokens: int, experts: int, top_k: int) -> Case:
    return Case(
        name,
        lambda new: (
            new.randn(tokens, experts, dtype=BF16),
            new.randint(0, 129280, tokens),
            new.randint(0, experts, 129280, top_k, dtype=I32),
            "sqrtsoftplus",
            True,
            1.5,
        ),
        large=True,
    )


def _not_finite(scoring: str) -> Case:
    """NaN and infinities among logits and bias."""
    logits = (
        (NAN, 1.0, -INF, NAN, 0.5),
        (NAN,) * 5,
        (-INF,) * 5,
        (1.0, 2.0, 0.0, -1.0, -2.0),
        (INF, 1.0, INF, 0.0, NAN),
    )
    bias = (0.5, NAN, 0.0, INF, -INF)
    f32 = torch.float32
    return Case(
        f"not_finite_{scoring}",
        lambda new: (new.tensor(logits, f32), new.tensor(bias, f32), 4, scoring, False, 1.0),
        unspecified=_TIED,
    )


def _by_table(scoring: str, tokens: int, top_k: int, dtype: torch.dtype) -> Case:
    """Odd numbers of tokens are renormalised, even ones are not."""
    return Case(
        f"{scoring}_{tokens}",
        lambda new: (
            new.randn(tokens, 65, scale=3.0, dtype=dtype),
            new.randint(0, 101, tokens, dtype=I32),
            new.randint(0, 65, 101, top_k, dtype=I32),
            scoring,
            tokens % 2 == 1,
            1.5,
        ),
    )


def _ties(new: Inputs, scoring: str) -> tuple[torch.Tensor, None, int, str, bool, float]:
    """Eight values over 65 experts, so that most choices are between equal ones."""
    return new.randint(-4, 4, 33, 65).float(), None, 7, scoring, True, 1.0


CASES: dict[str, tuple[Case, ...]] = {
    "topk_routing": (
        Case("no_rows", lambda new: (new.randn(0, 8), None, 2, "sqrtsoftplus", True, 1.0)),
        Case("one_expert", lambda new: (new.randn(3, 1), None, 1, "sqrtsoftplus", False, 1.0)),
        Case("all_experts", lambda new: (new.randn(5, 8), new.randn(8), 8, "softmax", True, 1.0)),
        _topk(1, 65, 3),
        _topk(63, 65, 6),
        _topk(65, 63, 8, dtype=F16),
        _topk(3, 1000, 1),
        _topk(33, 65, 3, "sigmoid"),
        _topk(33, 65, 3, "softmax"),
        _topk(1000, 9, 2, "sigmoid", BF16),
        Case(
            "plain_sigmoid",
            lambda new: (new.randn(7, 33), None, 4, "sigmoid", False, 1.5),
        ),
        Case(
            "plain_softmax",
            lambda new: (new.randn(7, 33, dtype=BF16), new.randn(33), 4, "softmax", False, 1.5),
            unspecified=_TIED,
        ),
        Case("ties_sqrtsoftplus", lambda new: _ties(new, "sqrtsoftplus"), unspecified=_TIED),
        Case("ties_sigmoid", lambda new: _ties(new, "sigmoid"), unspecified=_TIED),
        Case("ties_softmax", lambda new: _ties(new, "softmax"), unspecified=_TIED),
        Case(
            "extremes",
            lambda new: (
                new.tensor([[-200.0, 25.0, 19.9, -20.0, -88.0], [-200.0] * 5], torch.float32),
                None,
                3,
                "sqrtsoftplus",
                True,
                1.0,
            ),
            scale=8.0,
        ),
        *(_not_finite(scoring) for scoring in ("sqrtsoftplus", "sigmoid", "softmax")),
        Case(
            "strided",
            lambda new: (
                new.randn(9, 200, dtype=BF16)[:, 7:72],
                new.randn(65, dtype=BF16),
                5,
                "sqrtsoftplus",
                True,
                1.0,
            ),
        ),
        _model("v4_flash", 4096, 256, 6, "sqrtsoftplus"),
        _model("v4_pro", 4096, 384, 6, "sqrtsoftplus"),
        _model("v4_pro_decode", 32, 384, 6, "sqrtsoftplus"),
        _model("eight_of_256", 1024, 256, 8, "sigmoid"),
        _model("eight_of_384", 1024, 384, 8, "sigmoid"),
        _model("softmax_of_512", 1024, 512, 10, "softmax"),
        _model("many_experts", 1024, 2048, 8, "sqrtsoftplus"),
        _model("few_experts", 1024, 8, 8, "sqrtsoftplus"),
        Case(
            "float32_gate",
            lambda new: (new.randn(512, 256), new.randn(256), 8, "sqrtsoftplus", True, 2.5),
            large=True,
        ),
    ),
    "hash_routing": (
        Case(
            "no_rows",
            lambda new: (
                new.randn(0, 8),
                new.randint(0, 5, 0),
                new.randint(0, 8, 5, 2),
                "sqrtsoftplus",
                True,
                1.0,
            ),
        ),
        _by_table("sqrtsoftplus", 1, 6, torch.float32),
        _by_table("sqrtsoftplus", 63, 8, BF16),
        _by_table("sqrtsoftplus", 64, 1, torch.float32),
        _by_table("sigmoid", 3, 3, F16),
        _by_table("sigmoid", 4, 9, torch.float32),
        _by_table("softmax", 7, 3, torch.float32),
        _by_table("softmax", 8, 3, BF16),
        Case(
            "strided",
            lambda new: (
                new.randn(9, 100)[:, 3:36],
                new.randint(0, 7, 9, 2)[:, 1],
                new.randint(0, 33, 7, 10)[:, 2:8],
                "sqrtsoftplus",
                True,
                1.0,
            ),
        ),
        Case(
            "not_finite",
            lambda new: (
                new.tensor([[NAN, INF, -INF, 1.0]] * 3, torch.float32),
                new.tensor([0, 1, 2], torch.int64),
                new.tensor([[0, 3], [1, 3], [2, 3]], I32),
                "sqrtsoftplus",
                False,
                1.0,
            ),
        ),
        _hash("v4_flash", 4096, 256, 6),
        _hash("v4_pro", 4096, 384, 6),
        _hash("eight_of_384", 32, 384, 8),
    ),
}
