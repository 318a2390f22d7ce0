"""check-model and plan for DeepSeek-V3, plain and quantised."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ascend_fused_moe.quantized_rules import WeightForms
from ascend_fused_moe.testing.table_model import ExpertSizes, model_of
from ascend_models_deepseek.architectures import ARCHITECTURES
from ascend_models_deepseek.deepseek_v3.quantization import resolver_of
from ascend_models_deepseek.deepseek_v3.sharding import Shard
from ascend_models_deepseek.deepseek_v3.weights import main_table
from ascend_models_deepseek.testing.quantized_v3 import quantise_v3_checkpoint
from ascend_models_deepseek.testing.tiny_v3 import V3_SPECS, TinyV3Spec, write_v3_checkpoint
from ascend_models_deepseek.testing.tiny_v32 import TinyV32Spec, write_v32_checkpoint
from ascend_ops_core.errors import InvalidInputError
from ascend_vllm_plugin.planning.checkpoint import check_checkpoint
from ascend_vllm_plugin.planning.plan import make_plan
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.source import read_model
from ascend_vllm_plugin.planning.weights import Layout
from safetensors.torch import load_file, save_file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_v3_checkpoint(V3_SPECS["v3"], tmp_path_factory.mktemp("v3"))


def test_a_checkpoint_that_fits(folder: Path) -> None:
    report = check_checkpoint(folder)
    assert report.problems == []
    assert report.notes == []


def test_what_does_not_fit_is_listed(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.2.mlp.gate.weight"]
    tensors["model.layers.4.eh_proj.weight"] = tensors["model.layers.4.eh_proj.weight"][:, 1:]
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        tmp_path / "model.safetensors",
    )
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    assert check_checkpoint(tmp_path).problems == [
        "missing model.layers.2.mlp.gate.weight [16, 128]",
        "shape of model.layers.4.eh_proj.weight is [128, 255], expected [128, 256]",
    ]


def test_weights_are_those_of_the_files(folder: Path) -> None:
    """In float32 a card holds what is stored, its padded vocabulary included."""
    request = PlanRequest("A3", dtype="float32", speculative_tokens=1, max_model_len=1024)
    plan = make_plan(read_model(folder), request)
    stored = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    assert sum(plan.weights.values()) == stored
    assert plan.weights["dense MLP"] == 3 * 96 * 128 * 4
    (use,) = plan.caches
    assert (use.role, use.layers, use.block_tokens, use.row_bytes) == ("latent_cache", 5, 128, 320)


@pytest.mark.parametrize("layout", [Layout(2), Layout(2, 1, 2)])
def test_ranks_share_the_weights(folder: Path, layout: Layout) -> None:
    model = read_model(folder)
    whole = make_plan(model, PlanRequest("A3", dtype="float32", max_model_len=512)).weights
    part = make_plan(model, PlanRequest("A3", layout, dtype="float32", max_model_len=512)).weights
    for name in ("routed experts", "shared experts", "dense MLP", "embedding", "output head"):
        assert 2 * part[name] == whole[name]
    assert part["router"] == whole["router"]


def test_a_block_size_of_other_caches_is_refused(folder: Path) -> None:
    request = PlanRequest("A3", max_model_len=512, block_size=256)
    with pytest.raises(InvalidInputError, match=r"latent caches .* 128 or 16 tokens"):
        make_plan(read_model(folder), request)


def test_other_models_are_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(InvalidInputError, match="'deepseek_v4', 'deepseek_v3'"):
        read_model(tmp_path)


SIZES = {"num_hidden_layers": 2, "n_routed_experts": 4, "n_group": 2, "topk_group": 2}


@pytest.fixture(scope="module", params=["v3", "v32"])
def quantised(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with blocks of fp8, whose experts fill them; V3.2's with int8 and int4 ones."""
    folder = tmp_path_factory.mktemp("quantised")
    if request.param == "v3":
        spec = TinyV3Spec(moe_intermediate_size=128, **SIZES)
        write_v3_checkpoint(spec, folder / "plain")
    else:
        spec = TinyV32Spec(moe_intermediate_size=128, kv_lora_rank=128, **SIZES)
        write_v32_checkpoint(spec, folder / "plain")
    layout = {"v3": "fp8_mixed", "v32": "w4a8"}[request.param]
    quantise_v3_checkpoint(folder / "plain", folder / "stored", folder / "floats", layout)
    return folder / "stored"


def test_a_quantised_checkpoint_that_fits(quantised: Path) -> None:
    report = check_checkpoint(quantised)
    assert report.problems == []
    assert report.quantization is not None
    assert "fp8 128x128" in report.quantization or "W4A8_DYNAMIC" in report.quantization


def test_weights_are_what_the_model_holds(quantised: Path) -> None:
    """``kv_b_proj`` and the indexer's keys in the model's dtype, the rest as it is stored."""
    request = PlanRequest("A5", dtype="float32", weight_format="stored", memory_bytes=1 << 36)
    plan = make_plan(read_model(quantised), request)
    config = json.loads((quantised / "config.json").read_text())
    kind = ARCHITECTURES[config["model_type"]]
    spec = kind.spec.from_config(config)
    table = main_table(kind, spec, Shard.of(spec, 1, 0, (0, spec.vocab_size)))
    forms = WeightForms(table, resolver_of(config, quantised))
    model = model_of(table, forms, ExpertSizes(4, spec.hidden_size, 128))
    assert sum(plan.weights.values()) == sum(one.nbytes for one in model.parameters())
    whole = read_model(quantised.parent / "plain")
    assert sum(plan.weights.values()) < sum(make_plan(whole, request_of_floats()).weights.values())


def request_of_floats() -> PlanRequest:
    return PlanRequest("A5", dtype="float32", memory_bytes=1 << 36)


def test_tensors_of_caches_and_missing_scales_are_told(quantised: Path, tmp_path: Path) -> None:
    tensors = load_file(quantised / "model.safetensors")
    layer = "model.layers.1.self_attn.kv_b_proj"
    suffix = "weight_scale_inv" if f"{layer}.weight_scale_inv" in tensors else "weight_scale"
    del tensors[f"{layer}.{suffix}"]
    save_file(tensors, tmp_path / "model.safetensors")
    for name in ("config.json", "quant_model_description.json"):
        if (quantised / name).exists():
            (tmp_path / name).write_text((quantised / name).read_text())
    (problem,) = check_checkpoint(tmp_path).problems
    assert problem.startswith(f"missing {layer}.{suffix}")


@pytest.mark.parametrize(("cache_dtype", "row_bytes"), [("family", 128 + 32 + 4), ("model", 288)])
def test_latents_that_a_checkpoint_wants_in_eight_bits_are_counted(
    tmp_path: Path, cache_dtype: str, row_bytes: int
) -> None:
    spec = TinyV32Spec(moe_intermediate_size=128, kv_lora_rank=128, **SIZES)
    plain = write_v32_checkpoint(spec, tmp_path / "plain")
    quantise_v3_checkpoint(plain, tmp_path / "stored", tmp_path / "floats", "c8")
    request = PlanRequest("A3", cache_dtype=cache_dtype)
    plan = make_plan(read_model(tmp_path / "stored"), request)
    (latents,) = [use for use in plan.caches if use.role == "latent_cache"]
    assert latents.row_bytes == row_bytes
    (note,) = [one for one in check_checkpoint(tmp_path / "stored").notes if "wants" in one]
    assert "on an NPU latents are, with scales of their own" in note
