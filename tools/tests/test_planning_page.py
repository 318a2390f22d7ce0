"""The figures in docs/planning.md are those that `ascend-vllm plan` gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ascend_vllm_plugin.planning.advice import refusal
from ascend_vllm_plugin.planning.plan import Plan, make_plan
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.source import read_model
from ascend_vllm_plugin.planning.weights import Layout

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "planning.md").read_text()
DATA = ROOT / "packages" / "ascend-vllm-plugin" / "tests" / "data"
FORMATS = {"bfloat16": "model", "w8a8": "w8a8", "fp8 with 4-bit experts": "fp8-mxfp4"}
# How many cards: tensor, data and expert parallel.
LAYOUTS = {8: (8, 1, 8), 16: (8, 2, 16)}
PRO_LAYOUTS = {8: (8, 1, 8), 16: (16, 1, 16), 32: (16, 2, 32), 64: (16, 4, 64)}
ROW = re.compile(r"^\| (Flash|Pro), (.+?) \| (A[235]).* \| (.+?) \| (.+?) \|$", re.MULTILINE)


def plan(model: str, weights: str, device: str, cards: int, concurrency: int = 1) -> Plan:
    layouts = PRO_LAYOUTS if model == "Pro" else LAYOUTS
    request = PlanRequest(
        device,
        Layout(*layouts[cards]),
        weight_format=FORMATS[weights],
        memory_bytes=128 * 1024**3 if device == "A5" else None,
        concurrency=concurrency,
    )
    return make_plan(read_model(DATA / f"deepseek_v4_{model.lower()}.json"), request)


def shown(made: Plan) -> str:
    if made.fits:
        return "fits"
    longest = made.longest_context
    return f"{longest:,} tokens" if longest else "weights do not fit"


def test_the_table_is_found() -> None:
    assert len(ROW.findall(PAGE)) == 6


@pytest.mark.parametrize(
    ("model", "weights", "device", "eight", "sixteen"),
    ROW.findall(PAGE),
    ids=[" ".join(row[:3]) for row in ROW.findall(PAGE)],
)
def test_a_million_tokens(model: str, weights: str, device: str, eight: str, sixteen: str) -> None:
    assert eight == shown(plan(model, weights, device, 8))
    sixteen, *more = re.split(r" \(|; |\)", sixteen)
    assert sixteen == shown(plan(model, weights, device, 16))
    for text in filter(None, more):
        cards, expected = re.split(r" cards: |: ", text)
        made = shown(plan(model, weights, device, int(cards)))
        assert made.removesuffix(" tokens") == expected.removesuffix(" tokens")


def test_the_error_that_is_shown() -> None:
    refused = refusal(plan("Flash", "w8a8", "A2", 8, concurrency=5))
    assert refused is not None
    printed = " ".join(f"does not fit: {refused}".split())
    assert printed in " ".join(PAGE.split())
