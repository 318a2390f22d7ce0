"""check-model and plan know Kimi-Linear and Kimi-K3: weights, states and latents in one pool."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_attention.caches import CacheRole
from ascend_attention.state_caches import kda_state
from ascend_models_kimi.testing import (
    K3_SPECS,
    KIMI_LINEAR_SPECS,
    write_k3_checkpoint,
    write_kimi_linear_checkpoint,
)
from ascend_ops_core.errors import InvalidInputError
from ascend_vllm_plugin.planning.advice import notes
from ascend_vllm_plugin.planning.checkpoint import check_checkpoint
from ascend_vllm_plugin.planning.plan import make_plan
from ascend_vllm_plugin.planning.report import as_json, show
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.source import read_model
from ascend_vllm_plugin.planning.weights import Layout, WeightFormat, parameters, weights_by_part
from ascend_vllm_plugin.testing.hybrid_pool import assert_pool_is_vllms
from rich.console import Console
from safetensors.torch import load_file, save_file

DATA = Path(__file__).parent / "data"
PUBLISHED = DATA / "kimi_k3.json"
TINY = replace(next(iter(K3_SPECS.values())), mtp="random")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    quantized = replace(TINY, quantized=True)
    linear = next(iter(KIMI_LINEAR_SPECS.values()))
    return {
        "k3": write_k3_checkpoint(TINY, tmp_path_factory.mktemp("k3")),
        "mxfp4": write_k3_checkpoint(quantized, tmp_path_factory.mktemp("mxfp4")),
        "linear": write_kimi_linear_checkpoint(linear, tmp_path_factory.mktemp("linear")),
    }


def test_checkpoints_are_checked(folders: dict[str, Path]) -> None:
    for name, schemes in (("k3", "model"), ("mxfp4", "mxfp4"), ("linear", "model")):
        report = check_checkpoint(folders[name])
        assert report.problems == [], name
        assert schemes in report.quantization
        assert not any("not on" in note for note in report.notes)


def test_all_problems_of_a_quantised_one(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders["mxfp4"]
    tensors = load_file(folder / "model.safetensors")
    layer = "language_model.model.layers.1"
    expert = f"{layer}.block_sparse_moe.experts.2.w1.weight_scale"
    for name in (expert, f"{layer}.self_attn.q_conv1d.weight", "mm_projector.post_norm.weight"):
        del tensors[name]
    tensors["language_model.model.layers.5.surplus"] = torch.zeros(1)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    problems = "\n".join(check_checkpoint(tmp_path).problems)
    assert expert in problems
    assert f"missing {layer}.self_attn.q_conv1d.weight" in problems
    assert "missing mm_projector.post_norm.weight" in problems
    assert "language_model.model.layers.5.surplus" in problems


@pytest.mark.parametrize("name", ["k3", "mxfp4", "linear"])
def test_one_card_takes_the_bytes_of_the_files(folders: dict[str, Path], name: str) -> None:
    """In float32, as the files have it; copies of embedding and head, and padding, are not held."""
    source = read_model(folders[name])
    parts = weights_by_part(
        source.spec,
        Layout(),
        torch.float32,
        WeightFormat.STORED if name == "mxfp4" else WeightFormat.MODEL,
        draft=source.spec.num_mtp_layers > 0,
        resolver=source.resolver if name == "mxfp4" else None,
    )
    copies = ("embed_tokens.", "shared_head.head.", "self_attention_res_", "mlp_res_")
    draft = f"model.layers.{source.spec.num_hidden_layers}."
    unused = sum(
        torch.Size(shape).numel() * dtype.itemsize
        for tensor, (shape, dtype) in source.stored.items()
        if draft in tensor and any(copy in tensor for copy in copies)
    )
    unused += sum(
        4 * (shape[0] - source.spec.text.delta.num_heads)
        for tensor, (shape, _) in source.stored.items()
        if tensor.endswith("A_log") and len(shape) == 1
    )
    assert sum(parts.values()) == source.stored_bytes - unused
    expected = {"attention", "routed experts", "shared experts", "router", "dense MLP"}
    if name != "linear":
        expected |= {"vision tower", "attention residuals", "projections of experts", "MTP draft"}
    assert expected <= set(parts)


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize(
    ("name", "ranks", "drafts"), [("k3", 1, 0), ("k3", 2, 2), ("linear", 2, 0), ("full", 8, 1)]
)
def test_the_pool_is_what_vllm_makes_of_the_layers_specs(
    folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    ranks: int,
    drafts: int,
    prefix_caching: bool,
) -> None:
    """Block, page and groups by vLLM's own functions, from the specs that an engine's layers give.

    ``full`` has the published sizes, whose states and latents do not divide each other.
    """
    from ascend_attention.vllm.compat import cache_spec

    spec = read_model(PUBLISHED if name == "full" else folders[name]).spec
    if name == "full":
        spec = replace(spec, text=replace(spec.text, num_mtp_layers=1))
    text = spec.text
    state = kda_state(
        num_heads=text.delta.num_heads,
        head_dim=text.delta.head_dim,
        conv_width=text.delta.conv_width,
        dtype=torch.bfloat16,
        ranks=ranks,
        drafts=drafts,
    )
    assert_pool_is_vllms(
        monkeypatch,
        spec,
        state,
        device="cpu",
        kernel_blocks=16,
        attention={"use_mla": True, "heads": 1, "width": text.kv_lora_rank + text.qk_rope_head_dim},
        role=CacheRole.LATENT,
        spec_of=lambda kind, _: cache_spec(kind),
        ranks=ranks,
        drafts=drafts,
        prefix_caching=prefix_caching,
    )


def test_states_do_not_grow_with_the_context() -> None:
    source = read_model(PUBLISHED)
    plans = {
        (length, caching): make_plan(
            source,
            PlanRequest("A3", Layout(tensor=32), max_model_len=length, prefix_caching=caching),
        )
        for length, caching in ((4096, False), (65536, True))
    }
    delta, layers = source.spec.text.delta, sum(source.spec.text.delta_layers)
    heads = delta.num_heads // 32
    one = heads * delta.head_dim * (4 * delta.head_dim + 3 * (delta.conv_width - 1) * 2)
    for (length, caching), plan in plans.items():
        told = as_json(plan)
        assert told["state_bytes_of_a_request"] == layers * one * (1 + caching)
        assert told["prefix"]["cached"] is caching
        assert plan.caches[0].role in (CacheRole.LATENT, CacheRole.RECURRENT_STATE)
        states = [group for group in plan.pool.groups if group.states is not None]
        assert {group.blocks_at_most(length, 1) for group in states} == {1 + caching}
    console = Console(record=True, width=200, file=io.StringIO())
    show(plans[4096, False], console)
    assert "only if asked" in " ".join(console.export_text().split())
    assert all(isinstance(note, str) for note in notes(plans[4096, False]))


def test_the_published_shape() -> None:
    """The text model by hand: projections and networks of each kind of layer."""
    source = read_model(PUBLISHED)
    hidden, vocab, width, latent = 7168, 163840, 96 * 128, 3584
    delta = 4 * width * hidden + hidden * (96 + 128) + 128 * width + width * hidden
    delta += 3 * 4 * width + width + 96 + 128
    mla = hidden * (1536 + 576) + 1536 * 96 * 192 + 512 * 96 * 256 + 2 * width * hidden + 2048
    moe = 896 * 3 * latent * 3072 + 2 * 3 * hidden * 3072 + 2 * hidden * latent + latent
    moe += 896 * hidden + 896
    text = 69 * delta + 24 * mla + 92 * moe + 3 * hidden * 33792 + 2 * vocab * hidden
    text += 93 * 6 * hidden + 3 * hidden
    parts = weights_by_part(
        source.spec, Layout(), torch.bfloat16, WeightFormat.STORED, resolver=source.resolver
    )
    vision = 27 * (4 * 1024 * 1536 + 2 * 1024 * 4096 + 2 * 1024) + 1024 * (3 * 14 * 14 + 64 * 64)
    vision += 1024 + 4096 * 4096 + hidden * 4096 + hidden
    assert parameters(source.spec) == text + vision
    experts = 92 * 896 * 3 * latent * 3072
    assert parts["routed experts"] == experts // 2 + experts // 32


def test_kimi_linear_has_48_billion_weights() -> None:
    assert parameters(read_model(DATA / "kimi_linear.json").spec) == pytest.approx(48e9, rel=0.03)


@pytest.mark.parametrize(
    ("layout", "settings", "text"),
    [
        (Layout(tensor=5), {}, r"tensor_parallel_size=5.*Use one of"),
        (Layout(tensor=4, context=2), {}, "dcp=2.*states"),
        (Layout(tensor=8), {"block_size": 192}, "block_size=192.*multiple of 128"),
        (Layout(tensor=8), {"kv_dtype": "float8_e4m3fn"}, "kv_dtype=.*bfloat16"),
    ],
)
def test_what_cannot_be_is_refused(layout: Layout, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        make_plan(read_model(PUBLISHED), PlanRequest("A3", layout, **settings))


def test_other_linear_layers_become_the_models_dtype() -> None:
    """What a checkpoint has in eight bits besides routed experts takes two bytes a value."""
    source = read_model(PUBLISHED)
    plain, eight = (
        weights_by_part(source.spec, Layout(tensor=8), torch.bfloat16, form)
        for form in (WeightFormat.MODEL, WeightFormat.W8A8)
    )
    differ = {name for name in plain if plain[name] != eight[name]}
    assert differ == {"routed experts"}


def test_a_config_without_experts_can_be_planned(tmp_path: Path, folders: dict[str, Path]) -> None:
    config = json.loads((folders["linear"] / "config.json").read_text())
    config["num_experts"] = 0
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = read_model(tmp_path).spec
    parts = weights_by_part(spec, Layout(), torch.float32)
    assert "dense MLP" in parts
    assert not {"routed experts", "router"} & {name for name, size in parts.items() if size}
