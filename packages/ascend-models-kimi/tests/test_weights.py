"""Which tensors a checkpoint has, and what every rank takes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ascend_attention.layers.kda import KimiDeltaProjections
from ascend_attention.layers.mla import AscendMultiHeadLatentAttention, MLAShape
from ascend_models_kimi.kimi_linear.config import KimiLinearSpec
from ascend_models_kimi.kimi_linear.sharding import Shard
from ascend_models_kimi.kimi_linear.weights import delta_shape, main_table, text_root
from ascend_models_kimi.testing import KIMI_LINEAR_SPECS, write_kimi_linear_checkpoint
from ascend_ops_core import InvalidInputError
from ascend_ops_core.checkpoint.headers import check_headers, read_headers
from ascend_ops_core.checkpoint.table import CheckpointError, WeightTable
from safetensors.torch import load_file, save_file

NAMES = ("kimi_linear", "kimi_linear_odd")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: write_kimi_linear_checkpoint(KIMI_LINEAR_SPECS[name], tmp_path_factory.mktemp(name))
        for name in NAMES
    }


def read(name: str) -> KimiLinearSpec:
    return KimiLinearSpec.from_config(KIMI_LINEAR_SPECS[name].published_config())


def shard(name: str, size: int = 1, rank: int = 0) -> Shard:
    spec = read(name)
    return Shard.of(spec, size, rank, (0, spec.vocab_size))


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_of_transformers_has_a_place(folders: dict[str, Path], name: str) -> None:
    table = main_table(read(name), shard(name))
    check_headers(table, str(folders[name]))
    assert set(table.rules) == set(read_headers(folders[name]))


def test_where_a_text_model_s_names_begin() -> None:
    config = KIMI_LINEAR_SPECS["kimi_linear"].published_config()
    assert text_root(type("Config", (), {"text_config": config})) == "language_model."
    assert text_root(type("Config", (), config)) == ""
    table = main_table(read("kimi_linear"), shard("kimi_linear"), "language_model.")
    assert "language_model.model.layers.0.self_attn.q_conv1d.weight" in table.rules
    assert "language_model.lm_head.weight" in table.rules


def test_every_problem_is_listed_at_once(folders: dict[str, Path], tmp_path: Path) -> None:
    tensors = load_file(folders["kimi_linear"] / "model.safetensors")
    del tensors["model.layers.0.self_attn.f_b_proj.weight"]
    tensors["model.layers.0.self_attn.f_b_proj.weigth"] = torch.zeros(3)
    tensors["model.layers.1.self_attn.A_log"] = torch.zeros(5)
    tensors["model.layers.1.block_sparse_moe.experts.8.w1.weight"] = torch.zeros(3)
    tensors["model.layers.2.self_attn.kv_b_proj.weight"] = torch.zeros(3).int()
    save_file(tensors, tmp_path / "model.safetensors")
    table = main_table(read("kimi_linear"), shard("kimi_linear"))
    with pytest.raises(CheckpointError) as caught:
        check_headers(table, str(tmp_path))
    message = str(caught.value)
    for expected in (
        "missing model.layers.0.self_attn.f_b_proj.weight",
        "closest: model.layers.0.self_attn.f_b_proj.weigth",
        "shape of model.layers.1.self_attn.A_log is [5], expected [4] or [1, 1, 4, 1]",
        "unexpected model.layers.1.block_sparse_moe.experts.8.w1.weight",
        "dtype of model.layers.2.self_attn.kv_b_proj.weight is int32",
    ):
        assert expected in message


class Layer(torch.nn.Module):
    """A layer's attention alone, under the names that the table has for it."""

    def __init__(self, spec: KimiLinearSpec, own: Shard) -> None:
        super().__init__()
        delta, latent = torch.nn.Module(), torch.nn.Module()
        delta.weights = KimiDeltaProjections(delta_shape(spec, own), torch.float32)
        latent.weights = AscendMultiHeadLatentAttention(
            MLAShape(
                spec.hidden_size,
                own.num_heads,
                spec.q_lora_rank,
                spec.kv_lora_rank,
                spec.qk_nope_head_dim,
                spec.qk_rope_head_dim,
                spec.v_head_dim,
                1.0,
                1e-6,
            ),
            torch.float32,
        )
        self.delta, self.latent = delta, latent


def filled(
    spec: KimiLinearSpec, own: Shard, tensors: dict[str, torch.Tensor], layers: tuple[int, int]
) -> Layer:
    """The attention of a layer of each kind on one rank."""
    table = main_table(spec, own)
    made = Layer(spec, own)
    for layer, kind in zip(layers, ("delta", "latent"), strict=True):
        prefix = f"model.layers.{layer}.self_attn."
        rules = {n: r for n, r in table.rules.items() if n.startswith(prefix)}
        for name, rule in rules.items():
            param = rule.param.replace(f"model.layers.{layer}.self_attn", kind)
            moved = type(rule)(**{**vars(rule), "param": param})
            WeightTable({name: moved}, ()).load(made, [(name, tensors[name])])
    return made


@pytest.mark.parametrize(("name", "size"), [("kimi_linear", 2), ("kimi_linear_odd", 3)])
def test_ranks_share_a_layer_out(folders: dict[str, Path], name: str, size: int) -> None:
    """The parts of all ranks sum up to the whole layer's products."""
    spec = read(name)
    tensors = load_file(folders[name] / "model.safetensors")
    layers = spec.delta_layers.index(True), spec.delta_layers.index(False)
    whole = filled(spec, shard(name), tensors, layers)
    parts = [filled(spec, shard(name, size, rank), tensors, layers) for rank in range(size)]
    hidden = torch.randn(5, spec.hidden_size)
    given = whole.delta.weights.project(hidden)
    own = [part.delta.weights.project(hidden) for part in parts]
    width = given.decay.shape[1]
    for i, wanted in enumerate(given.mixed.split(width, dim=1)):
        found = [one.mixed.split(width // size, dim=1)[i] for one in own]
        torch.testing.assert_close(torch.cat(found, dim=1), wanted)
    for field in ("decay", "beta", "gate"):
        found = torch.cat([getattr(one, field) for one in own], dim=1)
        torch.testing.assert_close(found, getattr(given, field))
    heads = torch.randn(5, spec.delta.num_heads, spec.delta.head_dim)
    summed = sum(
        part.delta.weights.output(one)
        for part, one in zip(parts, heads.chunk(size, dim=1), strict=True)
    )
    torch.testing.assert_close(summed, whole.delta.weights.output(heads))
    conv = whole.delta.weights.conv.split(width, dim=1)
    for i, wanted in enumerate(conv):
        found = [part.delta.weights.conv.split(width // size, dim=1)[i] for part in parts]
        assert torch.equal(torch.cat(found, dim=1), wanted)
    for field in ("dt_bias", "a_log"):
        found = torch.cat([getattr(part.delta.weights, field) for part in parts])
        assert torch.equal(found, getattr(whole.delta.weights, field))
    for field in ("q_b", "kv_b"):
        found = torch.cat([getattr(part.latent.weights, field) for part in parts])
        assert torch.equal(found, getattr(whole.latent.weights, field))
    first = load_file(folders[name] / "model.safetensors")
    taps = first[f"model.layers.{layers[0]}.self_attn.k_conv1d.weight"].squeeze(1)
    assert torch.equal(conv[1], taps.T)


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("kimi_linear", 3, "num_attention_heads=4"),
        ("kimi_linear_odd", 2, "num_attention_heads=3"),
    ],
)
def test_ranks_that_do_not_divide(name: str, size: int, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        shard(name, size)
    assert "Use one of [1, " in str(caught.value)
