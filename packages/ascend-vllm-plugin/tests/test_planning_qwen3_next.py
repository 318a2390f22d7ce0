"""check-model and plan know Qwen3-Next: weights, states and keys and values in one pool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_attention.caches import CacheRole
from ascend_attention.state_caches import gdn_state
from ascend_ops_core.errors import InvalidInputError
from ascend_vllm_plugin.planning.checkpoint import check_checkpoint
from ascend_vllm_plugin.planning.plan import make_plan
from ascend_vllm_plugin.planning.report import as_json
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.source import read_model
from ascend_vllm_plugin.planning.weights import Layout, parameters, weights_by_part
from ascend_vllm_plugin.testing import QWEN3_NEXT_SPECS, write_qwen3_next_checkpoint
from ascend_vllm_plugin.testing.hybrid_pool import assert_pool_is_vllms
from safetensors.torch import load_file, save_file

PUBLISHED = Path(__file__).parent / "data" / "qwen3_next.json"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: write_qwen3_next_checkpoint(spec, tmp_path_factory.mktemp(name))
        for name, spec in QWEN3_NEXT_SPECS.items()
    }


@pytest.mark.parametrize("name", QWEN3_NEXT_SPECS)
def test_one_card_takes_the_bytes_of_the_files(folders: dict[str, Path], name: str) -> None:
    report = check_checkpoint(folders[name])
    assert report.problems == []
    drafts = QWEN3_NEXT_SPECS[name].draft
    assert any("no MTP tensors" in note for note in report.notes) is not drafts
    source = read_model(folders[name])
    parts = weights_by_part(source.spec, Layout(), torch.float32, draft=drafts)
    # vLLM rounds the rows of embedding and head up.
    spec = source.spec
    padding = 2 * 4 * spec.hidden_size * (-spec.vocab_size % 64)
    assert sum(parts.values()) == source.stored_bytes + padding
    expected = {"attention", "routed experts", "shared experts", "router", "embedding"}
    assert expected | ({"MTP draft"} if drafts else set()) <= set(parts)


def test_all_problems_at_once(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders["qwen3_next_mtp"]
    tensors = load_file(folder / "model.safetensors")
    del tensors["mtp.fc.weight"], tensors["model.layers.0.linear_attn.A_log"]
    tensors["model.layers.3.self_attn.q_proj.weight"] = torch.zeros(4, 64)
    tensors["model.layers.9.surplus"] = torch.zeros(1)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    problems = "\n".join(check_checkpoint(tmp_path).problems)
    assert "missing mtp.fc.weight" in problems
    assert "missing model.layers.0.linear_attn.A_log" in problems
    assert "shape of model.layers.3.self_attn.q_proj.weight is [4, 64], expected [256" in problems
    assert "unexpected model.layers.9.surplus" in problems


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize(
    ("name", "ranks", "drafts"),
    [("qwen3_next_mtp", 1, 0), ("qwen3_next_mtp", 2, 2), ("full", 4, 1), ("full", 2, 0)],
)
def test_the_pool_is_what_vllm_makes_of_the_layers_specs(
    folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    ranks: int,
    drafts: int,
    prefix_caching: bool,
) -> None:
    """Block, page and groups by vLLM's own functions, from the specs that its layers give."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    spec = read_model(PUBLISHED if name == "full" else folders[name]).spec
    kv_heads = max(1, spec.num_key_value_heads // ranks)
    state = gdn_state(
        key_heads=spec.linear_num_key_heads,
        value_heads=spec.linear_num_value_heads,
        key_dim=spec.linear_key_head_dim,
        value_dim=spec.linear_value_head_dim,
        conv_width=spec.linear_conv_kernel_dim,
        dtype=torch.bfloat16,
        ranks=ranks,
        drafts=drafts,
    )
    assert_pool_is_vllms(
        monkeypatch,
        spec,
        state,
        device="A3",
        kernel_blocks=128,
        attention={"use_mla": False, "heads": kv_heads, "width": spec.head_dim},
        role=CacheRole.KEY_VALUE,
        spec_of=lambda _, block: FullAttentionSpec(
            block_size=block,
            num_kv_heads=kv_heads,
            head_size=spec.head_dim,
            dtype=torch.bfloat16,
        ),
        ranks=ranks,
        drafts=drafts,
        prefix_caching=prefix_caching,
    )


def test_the_published_shape() -> None:
    """80 billion weights, and states by hand."""
    source = read_model(PUBLISHED)
    assert parameters(source.spec) == pytest.approx(80e9, rel=0.01)
    plan = make_plan(
        source, PlanRequest("A3", Layout(tensor=4), max_model_len=65536, prefix_caching=True)
    )
    # 36 layers; 8 value heads of 128 by 128, and three inputs of 4 + 4 + 8 heads, two bytes each.
    one = 2 * (8 * 128 * 128 + 3 * 16 * 128)
    told = as_json(plan)
    assert told["state_bytes_of_a_request"] == 36 * one * 2
    assert plan.pool.prefix_unit % 128 == 0
    whole = weights_by_part(source.spec, Layout(tensor=4, expert=4), torch.bfloat16, draft=True)
    assert whole["routed experts"] == 48 * 128 * 3 * 2048 * 512 * 2
    assert whole["shared experts"] == 48 * (3 * 2048 * 128 + 2048) * 2


@pytest.mark.parametrize(
    ("layout", "settings", "text"),
    [
        (Layout(tensor=3), {}, r"tensor_parallel_size=3.*num_key_value_heads=2.*Use one of"),
        (Layout(tensor=32), {}, r"tensor_parallel_size=32.*num_attention_heads=16.*Use one of"),
        (Layout(tensor=4, context=2), {}, "dcp=2.*states"),
        (Layout(tensor=4), {"block_size": 192}, "block_size=192.*multiple of 128"),
        (Layout(tensor=4), {"weight_format": "w8a8"}, "weight format 'w8a8'.*model"),
    ],
)
def test_what_cannot_be_is_refused(layout: Layout, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        make_plan(read_model(PUBLISHED), PlanRequest("A3", layout, **settings))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config.*bfloat16"),
        ({"layer_types": ["linear_attention"] * 48}, "layer_types.*needs both"),
        ({"linear_num_value_heads": 24}, "linear_num_value_heads=24.*16"),
        ({"num_experts_per_tok": 600}, "num_experts_per_tok=600"),
    ],
)
def test_configs_that_cannot_be_are_refused(
    changes: dict[str, Any], text: str, tmp_path: Path
) -> None:
    config = json.loads(PUBLISHED.read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidInputError, match=text):
        read_model(tmp_path)
