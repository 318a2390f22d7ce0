"""The prologue of latent attention against brute force in float64, and its limits."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from ascend_attention.ops.mla_prolog import PrologueWeights, mla_prolog, npu
from ascend_attention.ops.mla_prolog.cases import prolog
from ascend_attention.ops.paged_rows import RowIndex
from ascend_ops_core.cases import Inputs
from ascend_ops_core.devices import FAMILIES
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing import assert_close

EPS = 1e-6


def given_of(tokens: int = 5, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Arguments of the call; every second token is padding."""
    hidden, *rest = prolog(Inputs(seed=tokens), tokens, 17, 6, 9, 3, 7, 6, dtype)
    weights, (eps, cos, sin, latents, ropes, block, offset) = rest[:6], rest[6:]
    block[1::2] = -1
    return {
        "hidden": hidden, "weights": PrologueWeights(*weights), "eps": eps, "cos": cos, "sin": sin,
        "latents": latents, "ropes": ropes, "index": RowIndex(block, offset),
    }  # fmt: skip


@pytest.mark.oracle("ascend_attention::mla_prolog", "brute force in float64")
@pytest.mark.parametrize("tokens", [0, 1, 9])
def test_prologue_equals_brute_force(tokens: int) -> None:
    given = given_of(tokens)
    before = given["latents"].clone(), given["ropes"].clone()
    got = mla_prolog(**given)
    hidden, weights = given["hidden"].double(), given["weights"]
    down_q, up_q, up_k, down_kv, q_norm, kv_norm = (one.double() for one in weights)
    turn = torch.complex(given["cos"].double(), given["sin"].double())

    def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean() + EPS).sqrt() * weight

    def rotated(x: torch.Tensor, token: int) -> torch.Tensor:
        pairs = torch.complex(x[::2], x[1::2]) * turn[token]
        return torch.cat((pairs.real, pairs.imag))

    index = given["index"]
    seen = set()
    for t in range(tokens):
        q_input = normed(hidden[t] @ down_q, q_norm)
        assert_close(got.q_input[t], q_input, scale=4)
        for h, head in enumerate((q_input @ up_q).view(3, 13)):
            assert_close(got.q_latent[t, h], head[:7] @ up_k[h], scale=4)
            assert_close(got.q_rope[t, h], rotated(head[7:], t), scale=4)
        row = hidden[t] @ down_kv
        at = int(index.block[t]), int(index.offset[t])
        if at[0] >= 0:
            seen.add(at)
            assert_close(given["latents"][at], normed(row[:9], kv_norm), scale=4)
            assert_close(given["ropes"][at], rotated(row[9:], t), scale=4)
    for block in range(before[0].shape[0]):
        for offset in range(before[0].shape[1]):
            if (block, offset) not in seen:
                assert torch.equal(given["latents"][block, offset], before[0][block, offset])
                assert torch.equal(given["ropes"][block, offset], before[1][block, offset])


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("hidden", {"hidden": torch.zeros(5, 17, dtype=torch.int32)}),
        ("down_q", {"hidden": torch.zeros(5, 16)}),
        ("up_q", {"up_q": torch.zeros(6, 38)}),
        ("up_k", {"up_k": torch.zeros(3, 7)}),
        ("down_kv of 9 columns", {"down_kv": torch.zeros(17, 9)}),
        ("q_norm", {"q_norm": torch.ones(6, dtype=torch.float64)}),
        ("kv_norm", {"kv_norm": torch.ones(8)}),
        ("cos", {"cos": torch.zeros(5, 3, dtype=torch.float16)}),
        ("sin", {"sin": torch.zeros(4, 3)}),
        ("latents", {"latents": torch.zeros(2, 4, 8)}),
        ("ropes", {"ropes": torch.zeros(3, 4, 6, dtype=torch.float16)}),
        ("block", {"index": RowIndex(torch.zeros(4).long(), torch.zeros(5).long())}),
    ],
)
def test_bad_arguments_are_refused_and_nothing_is_written(
    name: str, changed: dict[str, Any]
) -> None:
    given = given_of()
    weights = {k: v for k, v in changed.items() if k in PrologueWeights._fields}
    given |= {k: v for k, v in changed.items() if k not in weights}
    given["weights"] = given["weights"]._replace(**weights)
    before = given["latents"].clone()
    with pytest.raises(InvalidInputError, match=name):
        mla_prolog(**given)
    assert torch.equal(given["latents"], before)


@pytest.mark.parametrize(
    ("reason", "given"),
    [
        (None, {}),
        (None, {"tokens": 0, "heads": 128, "rows": 16, "hidden": 7680, "family": "A2"}),
        ("device family A5", {"family": "A5"}),
        ("tokens of torch.float16", {"dtype": torch.float16}),
        ("a hidden size of 5120", {"hidden": 5120}),
        ("latents of 2048 and 512", {"q_rank": 2048}),
        ("latents of 1536 and 256", {"rank": 256}),
        ("heads of 192 \\+ 64", {"nope": 192}),
        ("heads of 128 \\+ 32", {"rotary": 32}),
        ("5 heads", {"heads": 5}),
        ("256 heads", {"heads": 256}),
        ("blocks of 64", {"rows": 64}),
        ("more tokens than", {"tokens": 1_048_577}),
    ],
)
def test_limits_of_the_fused_operator(reason: str | None, given: dict[str, Any]) -> None:
    settings = {
        "tokens": 3, "hidden": 7168, "q_rank": 1536, "rank": 512, "heads": 8, "nope": 128,
        "rotary": 64, "dtype": torch.bfloat16, "rows": 128,
    }  # fmt: skip
    given = settings | given
    facts = FAMILIES[given.pop("family", "A3")]
    support = npu.supports_mla_prolog(facts, *prolog(Inputs("meta"), **given))
    assert bool(support) is (reason is None)
    assert reason is None or re.search(reason, support.reason)


def test_caches_with_gaps_are_refused() -> None:
    given = list(prolog(Inputs("meta"), 3, 7168, 1536, 512, 8, 128, 64, torch.bfloat16, rows=128))
    given[10] = torch.empty(2, 128, 576, dtype=torch.bfloat16, device="meta")[..., :512]
    support = npu.supports_mla_prolog(FAMILIES["A3"], *given)
    assert "gaps" in support.reason
