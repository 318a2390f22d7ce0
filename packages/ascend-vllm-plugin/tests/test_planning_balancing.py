"""Planning with experts that are balanced by load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_fused_moe.eplb import EplbLayerMaps, ExpertLoadWindow, initial_placement
from ascend_models_deepseek.testing.tiny_v3 import V3_SPECS
from ascend_ops_core.errors import InvalidInputError
from ascend_vllm_plugin.cli.app import app
from ascend_vllm_plugin.planning.plan import Plan, make_plan
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.source import read_model
from ascend_vllm_plugin.planning.weights import Layout, weights_by_part
from typer.testing import CliRunner

FLASH = Path(__file__).parent / "data" / "deepseek_v4_flash.json"
EXPERTS = 256


def plan(redundant: int | None, cards: int = 8, **settings: Any) -> Plan:
    layout = Layout(cards, 1, cards, redundant=redundant)
    settings = {"weight_format": "w8a8", "max_model_len": 4096} | settings
    return make_plan(read_model(FLASH), PlanRequest("A2", layout, **settings))


def small(redundant: int | None, tokens: int) -> Plan:
    """A step whose widest point is its layers' rather than sampling."""
    return plan(redundant, max_num_batched_tokens=tokens, max_num_seqs=4)


@pytest.mark.parametrize(
    ("cards", "redundant", "held"), [(8, 0, 32), (8, 1, 33), (8, 16, 34), (16, 5, 17)]
)
def test_the_fullest_card_holds_its_share_of_the_replicas(
    cards: int, redundant: int, held: int
) -> None:
    spec = read_model(FLASH).spec
    one = weights_by_part(spec, Layout(), torch.bfloat16)["routed experts"] // EXPERTS
    for draft in (False, True):
        parts = weights_by_part(
            spec, Layout(cards, 1, cards, redundant=redundant), torch.bfloat16, draft=draft
        )
        assert parts["routed experts"] == held * one
    without = weights_by_part(spec, Layout(cards, 1, cards), torch.bfloat16, draft=True)
    more = held - EXPERTS // cards
    layer = one // spec.num_hidden_layers
    assert parts["MTP draft"] - without["MTP draft"] == more * layer


@pytest.mark.parametrize("draft", [0, 1])
def test_maps_and_counters_are_those_that_are_made(draft: int) -> None:
    """With so many tokens in a step that moving experts fits into their activations."""
    made = plan(16, speculative_tokens=draft, max_num_batched_tokens=65536)
    layers = made.source.spec.num_hidden_layers + draft
    placement = initial_placement(EXPERTS, 8, 16)
    maps = EplbLayerMaps(placement, 3)
    sizes = (maps.routing_table, maps.expert_map, maps.log2phy, maps.replica_counts, maps.phy2log)
    window = ExpertLoadWindow(layers, placement.places, 100, multistage=False)
    counters = window.current.nbytes + window._steps.nbytes
    assert made.balancing.bytes == layers * sum(one.nbytes for one in sizes) + counters
    assert plan(None).balancing.bytes == 0


def test_moving_experts_takes_what_activations_leave() -> None:
    """Twice the experts of a layer, less the activations that are free between steps."""
    few, more = small(16, 128), small(16, 256)
    layers = few.source.spec.num_hidden_layers
    moved = 2 * few.weights["routed experts"] // layers
    assert few.activations.bytes < more.activations.bytes < moved
    for made in (few, more):
        maps = plan(16, max_num_batched_tokens=65536).balancing.bytes
        assert made.balancing.bytes == maps + moved - made.activations.bytes
    assert few.fixed_bytes == small(None, 128).fixed_bytes + (
        few.balancing.bytes + few.weights["routed experts"] - plan(None).weights["routed experts"]
    )


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        ((8, 1, 1, 0), "redundant_experts=0 with ep=1"),
        ((8, 1, 8, -1), "redundant_experts=-1"),
        ((8, 1, 8, 7 * EXPERTS + 1), "at most 1792 are redundant"),
    ],
)
def test_replicas_that_have_no_place_are_refused(layout: tuple[int, ...], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        make_plan(read_model(FLASH), PlanRequest("A2", Layout(*layout[:3], redundant=layout[3])))


def test_models_whose_experts_stay_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(V3_SPECS["v3"].published_config()))
    with pytest.raises(InvalidInputError, match="only DeepSeek-V4's experts"):
        make_plan(read_model(tmp_path), PlanRequest("A2", Layout(2, 1, 2, redundant=2)))


def test_the_command_knows_replicas() -> None:
    asked = ["plan", "--model", str(FLASH), "--device", "A2", "--cards", "8", "--ep", "8"]
    asked += ["--weight-format", "w8a8", "--redundant-experts", "16"]
    runner = CliRunner(env={"COLUMNS": "200"})
    shown = runner.invoke(app, asked).output
    assert "expert 8 with 16 replicas" in shown
    assert "load balancing" in shown
    report = json.loads(runner.invoke(app, [*asked, "--json"]).stdout)
    assert report["request"]["redundant_experts"] == 16
    refused = runner.invoke(app, [*asked[:-6], "--redundant-experts", "16"])
    assert refused.exit_code == 2
    assert "redundant_experts=16 with ep=1" in refused.output
