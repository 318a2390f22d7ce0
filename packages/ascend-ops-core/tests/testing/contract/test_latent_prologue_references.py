"""The references of what stands in front of latent attention: by hand, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_ops_core.devices import device_family
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing.contract import SUPPORTED_WHEELS, Contract, open_wheel, read_schemas

pytestmark = pytest.mark.contract

BF16 = torch.bfloat16
CACHE, PROLOG = "npu_kv_rmsnorm_rope_cache", "npu_mla_prolog_v3"
PASSED = {
    CACHE: ("kv", "gamma", "cos", "sin", "index", "k_cache", "ckv_cache", "epsilon", "cache_mode"),
    PROLOG: (
        "token_x", "weight_dq", "weight_uq_qr", "weight_uk", "weight_dkv_kr", "rmsnorm_gamma_cq",
        "rmsnorm_gamma_ckv", "rope_sin", "rope_cos", "kv_cache", "kr_cache", "cache_index",
        "rmsnorm_epsilon_cq", "rmsnorm_epsilon_ckv", "cache_mode", "query_norm_flag",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _on_cpu(contract: Contract) -> None:
    """Calls of torch.ops.npu on CPU tensors run the references."""


def rows(tokens: int = 3) -> dict[str, Any]:
    """Arguments of the cache's write; the second token has no row."""
    return {
        "kv": torch.randn(1, 1, tokens, 576).to(BF16),
        "gamma": torch.rand(512).to(BF16),
        "cos": torch.rand(1, 1, tokens, 64).to(BF16),
        "sin": torch.rand(1, 1, tokens, 64).to(BF16),
        "index": torch.tensor([33, -1, 2])[:tokens],
        "k_cache": torch.zeros(2, 32, 1, 64, dtype=BF16),
        "ckv_cache": torch.zeros(2, 32, 1, 512, dtype=BF16),
        "epsilon": 1e-6,
        "cache_mode": "PA_BNSD",
    }


def prolog(tokens: int = 3) -> dict[str, Any]:
    """Arguments of the prologue with one head."""
    cached = rows(tokens)
    return {
        "token_x": torch.randn(tokens, 6144).to(BF16),
        "weight_dq": (torch.randn(6144, 1536) / 64).to(BF16),
        "weight_uq_qr": (torch.randn(1536, 192) / 32).to(BF16),
        "weight_uk": (torch.randn(1, 128, 512) / 8).to(BF16),
        "weight_dkv_kr": (torch.randn(6144, 576) / 64).to(BF16),
        "rmsnorm_gamma_cq": torch.rand(1536).to(BF16),
        "rmsnorm_gamma_ckv": cached["gamma"],
        "rope_sin": cached["sin"][0, 0],
        "rope_cos": cached["cos"][0, 0],
        "kv_cache": torch.zeros(2, 16, 1, 512, dtype=BF16),
        "kr_cache": torch.zeros(2, 16, 1, 64, dtype=BF16),
        "cache_index": torch.tensor([17, -1, 2])[:tokens],
        "rmsnorm_epsilon_cq": 1e-6,
        "rmsnorm_epsilon_ckv": 1e-6,
        "query_norm_flag": True,
    }


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Pair after pair, the first elements of all in front of the second."""
    out = torch.empty(64, dtype=torch.float64)
    for i in range(32):
        a, b = x[2 * i].double(), x[2 * i + 1].double()
        out[i] = a * cos[i].double() - b * sin[i].double()
        out[32 + i] = b * cos[32 + i].double() + a * sin[32 + i].double()
    return out


def normed(x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    x = x.double()
    return x / (x.square().mean() + 1e-6).sqrt() * gamma.double()


def assert_near(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got.double(), wanted.double(), rtol=2e-2, atol=2e-2)


def test_rows_by_hand() -> None:
    given = rows()
    results = torch.ops.npu.npu_kv_rmsnorm_rope_cache(**given)
    assert [tuple(one.shape[1:]) for one in results[:2]] == [(32, 1, 64), (32, 1, 512)]
    for token, at in ((0, (1, 1)), (2, (0, 2))):
        kv, turn = given["kv"][0, 0, token], (given["cos"][0, 0, token], given["sin"][0, 0, token])
        assert_near(given["ckv_cache"][at][0], normed(kv[:512], given["gamma"]))
        assert_near(given["k_cache"][at][0], turned(kv[512:], *turn))
    assert int(given["ckv_cache"].any(-1).sum()) == int(given["k_cache"].any(-1).sum()) == 2


def test_prologue_by_hand() -> None:
    given = prolog()
    q, q_rope, _, latent, _ = torch.ops.npu.npu_mla_prolog_v3(**given)
    for token, at in ((0, (1, 1)), (1, None), (2, (0, 2))):
        x = given["token_x"][token].double()
        turn = given["rope_cos"][token], given["rope_sin"][token]
        down = x @ given["weight_dq"].double()
        assert_near(latent[token], normed(down, given["rmsnorm_gamma_cq"]))
        query = latent[token].double() @ given["weight_uq_qr"].double()
        assert_near(q[token, 0], query[:128] @ given["weight_uk"][0].double())
        assert_near(q_rope[token, 0], turned(query[128:], *turn))
        if at is not None:
            row = x @ given["weight_dkv_kr"].double()
            assert_near(given["kv_cache"][at][0], normed(row[:512], given["rmsnorm_gamma_ckv"]))
            assert_near(given["kr_cache"][at][0], turned(row[512:], *turn))
    assert int(given["kv_cache"].any(-1).sum()) == 2


def test_no_tokens_leave_the_caches() -> None:
    given = prolog(0)
    q, *_ = torch.ops.npu.npu_mla_prolog_v3(**given)
    assert q.shape == (0, 1, 512)
    assert not given["kv_cache"].any()


@pytest.mark.parametrize(
    ("limit", "changed"),
    [
        ("it takes float16, bfloat16", {"kv": torch.zeros(1, 1, 3, 576)}),
        ("it takes bfloat16", {"cos": torch.zeros(1, 1, 3, 64)}),
        ("it takes int64", {"index": torch.zeros(3, dtype=torch.int32)}),
        ("576", {"kv": torch.zeros(1, 1, 3, 512, dtype=BF16)}),
        ("multiples of 32", {"k_cache": torch.zeros(4, 16, 1, 64, dtype=BF16),
                             "ckv_cache": torch.zeros(4, 16, 1, 512, dtype=BF16)}),
        ("less than 64", {"index": torch.tensor([64, -1, 2])}),
        ("they differ", {"index": torch.tensor([2, -1, 2])}),
        ("modelled is PA_BNSD", {"cache_mode": "Norm"}),
        ("not contiguous", {"ckv_cache": torch.zeros(2, 32, 1, 1024, dtype=BF16)[..., ::2]}),
    ],
)  # fmt: skip
def test_rows_beyond_a_limit_are_refused(limit: str, changed: dict[str, Any]) -> None:
    given = rows() | changed
    with pytest.raises(InvalidInputError, match=limit):
        torch.ops.npu.npu_kv_rmsnorm_rope_cache(**given)
    assert not given["ckv_cache"].any()


@pytest.mark.parametrize(
    ("limit", "changed"),
    [
        ("it takes bfloat16", {"token_x": torch.zeros(3, 6144)}),
        ("it takes bfloat16", {"rmsnorm_gamma_cq": torch.zeros(1536)}),
        ("6144, 7168 or 7680", {"token_x": torch.zeros(3, 5120, dtype=BF16)}),
        (r"\[1536, 192\]", {"weight_uq_qr": torch.zeros(1536, 128, dtype=BF16)}),
        ("a power of two", {"weight_uk": torch.zeros(3, 128, 512, dtype=BF16)}),
        ("16 or 128", {"kv_cache": torch.zeros(2, 32, 1, 512, dtype=BF16),
                       "kr_cache": torch.zeros(2, 32, 1, 64, dtype=BF16)}),
        ("modelled are 1", {"kc_scale": 2.0}),
        ("not modelled", {"weight_quant_mode": 1}),
        ("not contiguous", {"weight_dq": torch.zeros(1536, 6144, dtype=BF16).T}),
    ],
)  # fmt: skip
def test_a_prologue_beyond_a_limit_is_refused(limit: str, changed: dict[str, Any]) -> None:
    given = prolog() | changed
    with pytest.raises(InvalidInputError, match=limit):
        torch.ops.npu.npu_mla_prolog_v3(**given)
    assert not given["kv_cache"].any()


def test_other_families_are_refused() -> None:
    for op, given in ((CACHE, rows()), (PROLOG, prolog())):
        with device_family("A5"), pytest.raises(InvalidInputError, match="A2, A3"):
            getattr(torch.ops.npu, op)(**given)


def test_wrong_keywords_are_refused() -> None:
    for op, given in ((CACHE, rows()), (PROLOG, prolog())):
        with pytest.raises(RuntimeError, match="Unknown keyword argument 'eps'"):
            getattr(torch.ops.npu, op)(**given, eps=1e-6)
    # The meta kernel asks for a batch, a head, and tokens.
    with pytest.raises(RuntimeError, match="4D tensor"):
        torch.ops.npu.npu_kv_rmsnorm_rope_cache(**(rows() | {"kv": torch.zeros(3, 576)}))
    with pytest.raises(RuntimeError, match="2 or 3"):
        torch.ops.npu.npu_mla_prolog_v3(**(prolog() | {"token_x": torch.zeros(6144)}))


@pytest.mark.parametrize("version", SUPPORTED_WHEELS)
def test_every_supported_wheel_takes_what_is_passed(wheels: Path, version: str) -> None:
    schemas = read_schemas(open_wheel(wheels / version))
    for op, names in PASSED.items():
        arguments = schemas[op].partition("(")[2].rpartition("->")[0]
        declared = {part.split("=")[0].split()[-1].strip(") ") for part in arguments.split(",")}
        assert set(names) <= declared, f"{op} of {version}"
