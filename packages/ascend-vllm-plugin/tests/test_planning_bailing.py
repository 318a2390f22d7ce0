"""check-model and plan know Ling 2.5: weights, and states and latents in one pool."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_attention.caches import CacheRole
from ascend_ops_core.errors import InvalidInputError
from ascend_vllm_plugin.planning.checkpoint import check_checkpoint
from ascend_vllm_plugin.planning.plan import make_plan
from ascend_vllm_plugin.planning.report import as_json
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.source import read_model
from ascend_vllm_plugin.planning.weights import Layout, parameters, weights_by_part
from ascend_vllm_plugin.testing import BAILING_SPECS, write_bailing_checkpoint
from ascend_vllm_plugin.testing.hybrid_pool import assert_pool_is_vllms
from safetensors.torch import load_file, save_file

PUBLISHED = Path(__file__).parent / "data" / "ling_2_6_flash.json"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: write_bailing_checkpoint(spec, tmp_path_factory.mktemp(name))
        for name, spec in BAILING_SPECS.items()
    }


@pytest.mark.parametrize("name", BAILING_SPECS)
def test_one_card_takes_the_bytes_of_the_files(folders: dict[str, Path], name: str) -> None:
    assert check_checkpoint(folders[name]).problems == []
    source = read_model(folders[name])
    spec, drafts = source.spec, name == "bailing_mtp"
    parts = weights_by_part(spec, Layout(), torch.float32, draft=drafts)
    # vLLM rounds the rows of embedding and head up.
    padding = 2 * 4 * spec.hidden_size * (-spec.vocab_size % 64)
    assert sum(parts.values()) == source.stored_bytes + padding
    expected = {"attention", "routed experts", "shared experts", "router", "embedding"}
    assert expected | ({"MTP draft"} if drafts else {"dense MLP"}) <= set(parts)


def test_all_problems_at_once(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders["bailing_mtp"]
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.0.attention.g_norm.weight"], tensors["model.layers.3.enorm.weight"]
    tensors["model.layers.2.attention.dense.weight"] = torch.zeros(4, 64)
    tensors["model.layers.1.attention.kv_b_proj.weight"] = torch.zeros(1)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    problems = "\n".join(check_checkpoint(tmp_path).problems)
    assert "missing model.layers.0.attention.g_norm.weight" in problems
    assert "missing model.layers.3.enorm.weight" in problems
    assert (
        "shape of model.layers.2.attention.dense.weight is [4, 64], expected [64, 72]" in problems
    )
    assert "unexpected model.layers.1.attention.kv_b_proj.weight" in problems


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize(("ranks", "drafts"), [(1, 0), (1, 2), (2, 1)])
def test_the_pool_is_what_vllm_makes_of_the_layers_specs(
    folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    ranks: int,
    drafts: int,
    prefix_caching: bool,
) -> None:
    """Block, page and groups by vLLM's own functions, from the specs that its layers give."""
    from ascend_attention.vllm.compat import cache_spec
    from vllm.model_executor.layers.mamba.mamba_utils import (
        MambaStateDtypeCalculator,
        MambaStateShapeCalculator,
    )

    # States larger than 128 tokens of latents.
    config = json.loads((folders["bailing_mtp"] / "config.json").read_text())
    config |= {"head_dim": 64, "group_norm_size": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = read_model(tmp_path).spec
    width = spec.text.kv_lora_rank + spec.text.qk_rope_head_dim
    heads, dtype = spec.num_attention_heads, torch.bfloat16
    state = SimpleNamespace(
        shapes=MambaStateShapeCalculator.linear_attention_state_shape(heads, ranks, 64),
        dtypes=MambaStateDtypeCalculator.linear_attention_state_dtype(dtype, "auto"),
    )
    assert_pool_is_vllms(
        monkeypatch,
        spec,
        state,
        device="A3",
        kernel_blocks=128,
        attention={"use_mla": True, "heads": 1, "width": width},
        role=CacheRole.LATENT,
        spec_of=lambda kind, _: cache_spec(kind),
        ranks=ranks,
        drafts=drafts,
        prefix_caching=prefix_caching,
    )


def test_a_plan_says_what_a_request_keeps(folders: dict[str, Path]) -> None:
    plan = make_plan(
        read_model(folders["bailing"]),
        PlanRequest("A3", Layout(tensor=2), max_model_len=2048, prefix_caching=True),
    )
    # Two layers, two heads of 16 by 16, in bfloat16, and one state more for prefixes.
    assert as_json(plan)["state_bytes_of_a_request"] == 2 * 2 * 16 * 16 * 2 * 2
    assert plan.pool.prefix_unit % 128 == 0
    whole = weights_by_part(plan.source.spec, Layout(tensor=2, expert=2), torch.bfloat16)
    assert whole["routed experts"] == 3 * 4 * 3 * 64 * 32 * 2
    assert whole["shared experts"] == 3 * 3 * 64 * 16 * 2


def test_the_published_shape() -> None:
    """104 billion weights, and states by hand."""
    source = read_model(PUBLISHED)
    assert parameters(source.spec) == pytest.approx(104e9, rel=0.01)
    request = PlanRequest("A3", Layout(tensor=4, data=2, expert=8), max_model_len=131072)
    plan = make_plan(source, request)
    # 28 layers; 8 heads of 128 by 128 on a card, two bytes each.
    assert as_json(plan)["state_bytes_of_a_request"] == 28 * 8 * 128 * 128 * 2


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"architectures": ["BailingHybridForCausalLM"]},
            r"BailingMoeV2_5ForCausalLM \(Ling 2.5\)",
        ),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config.*bfloat16"),
        ({"num_hidden_layers": 5}, "num_hidden_layers=5 with layer_group_size=2"),
        ({"use_bias": True}, "use_bias.*biases"),
        ({"moe_shared_expert_intermediate_size": 20}, "shared experts of 20 channels"),
    ],
)
def test_configs_that_cannot_be_are_refused(
    changes: dict[str, Any], text: str, tmp_path: Path
) -> None:
    config = BAILING_SPECS["bailing"].published_config() | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidInputError, match=text):
        read_model(tmp_path)


def test_layouts_that_cannot_be_are_refused(folders: dict[str, Path]) -> None:
    source = read_model(folders["bailing"])
    with pytest.raises(InvalidInputError, match=r"tensor_parallel_size=4.*group_norm_size=2"):
        make_plan(source, PlanRequest("A3", Layout(tensor=4)))
    with pytest.raises(InvalidInputError, match=r"weight format 'w8a8'.*Ling 2.5"):
        make_plan(source, PlanRequest("A3", Layout(tensor=2), weight_format="w8a8"))
