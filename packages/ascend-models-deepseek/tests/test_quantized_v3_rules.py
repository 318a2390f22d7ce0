"""Quantised DeepSeek-V3, V3.2 and GLM-5: what ranks hold stands for the dequantised slices."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_fused_moe.layers.routed_experts import AscendRoutedExperts
from ascend_fused_moe.quantized_rules import WeightForms, finish_weights
from ascend_fused_moe.testing.table_model import ExpertSizes, model_of
from ascend_models_deepseek.architectures import ARCHITECTURES
from ascend_models_deepseek.deepseek_v3.latents import wants_int8_latents
from ascend_models_deepseek.deepseek_v3.quantization import resolver_of
from ascend_models_deepseek.deepseek_v3.sharding import Shard
from ascend_models_deepseek.deepseek_v3.weights import WeightTable, main_table, mtp_table
from ascend_models_deepseek.testing.quantized_v3 import quantise_v3_checkpoint
from ascend_models_deepseek.testing.tiny_v3 import TinyV3Spec, write_v3_checkpoint
from ascend_models_deepseek.testing.tiny_v32 import TinyGlmSpec, TinyV32Spec, write_v32_checkpoint
from ascend_ops_core.checkpoint.table import CheckpointError
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.quantized_weights.descriptions import CacheDescription
from ascend_ops_core.quantized_weights.weight import QuantizedWeight
from ascend_ops_core.testing import assert_close
from safetensors.torch import load_file, save_file
from torch import nn

Tensors = dict[str, torch.Tensor]
# Two ranks have 128 channels of each expert, a block; heads and vocabulary are cut within one.
SIZES: dict[str, Any] = {
    "seed": 7,
    "num_hidden_layers": 2,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 256,
    "mtp": "random",
}
SPECS = {"v3": TinyV3Spec(**SIZES), "v32": TinyV32Spec(**SIZES), "glm": TinyGlmSpec(**SIZES)}
# The mixed layouts have every format of their kind.
MIXED = [
    ("v32", "fp8_mixed"),
    ("v32", "modelslim_mixed"),
    ("v32", "w8a8_everywhere"),
    ("v3", "compressed_mixed"),
    ("v3", "compressed_int8"),
    ("glm", "fp8_e8m0"),
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            write = write_v3_checkpoint if name == "v3" else write_v32_checkpoint
            made[name] = write(SPECS[name], tmp_path_factory.mktemp(name))  # type: ignore[operator]
        return made[name]

    return folder


def table_of(name: str, size: int = 1, rank: int = 0, *, draft: bool = False) -> WeightTable:
    config = SPECS[name].published_config()
    kind = ARCHITECTURES[config["model_type"]]
    spec = kind.spec.from_config(config)
    part = spec.vocab_size // size
    shard = Shard.of(spec, size, rank, (rank * part, (rank + 1) * part))
    return (mtp_table if draft else main_table)(kind, spec, shard)


def forms_of(folder: Path, table: WeightTable) -> WeightForms:
    config = json.loads((folder / "config.json").read_text())
    return WeightForms(table, resolver_of(config, folder))


def sizes(size: int = 1, rank: int = 0) -> ExpertSizes:
    return ExpertSizes(4, 128, 256, rank, size)


def write(plain: Path, folder: Path, layout: str) -> tuple[Path, Tensors, Tensors]:
    """Folder and tensors of the quantised checkpoint, and the dequantised tensors."""
    quantised, dequantised = folder / "quantised", folder / "dequantised"
    quantise_v3_checkpoint(plain, quantised, dequantised, layout)
    file = "model.safetensors"
    return quantised, load_file(quantised / file), load_file(dequantised / file)


def assert_equal_weights(model: nn.Module, expected: nn.Module) -> tuple[int, int]:
    """Compare all weights; return how many are quantised, experts left out, and how many plain."""
    ids = torch.tensor([[0, 3], [1, 2], [2, 0], [3, 3], [1, 0]])
    x, weights = torch.randn(5, 128), torch.rand(5, 2)
    rest, seen = dict(expected.named_parameters()), 0
    for name, module in model.named_modules():
        if isinstance(module, QuantizedWeight):
            right = rest.pop(name)
            assert module.shape == tuple(right.shape)
            assert_close(module(torch.eye(right.shape[1])).T, right)
            seen += 1
        if isinstance(module, AscendRoutedExperts):
            other = expected.get_submodule(name)
            assert isinstance(other, AscendRoutedExperts)
            got = module.forward_tokens(x, weights, ids)
            assert_close(got, other.forward_tokens(x, weights, ids), scale=8)
            for part in ("w13", "w2"):
                del rest[f"{name}.{part}"]
    for name, value in rest.items():
        assert_close(model.get_parameter(name).data, value.data)
    return seen, len(rest)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(("name", "layout"), MIXED)
def test_every_rank_holds_what_the_dequantised_slice_is(
    plain: Callable[[str], Path], tmp_path: Path, name: str, layout: str, size: int
) -> None:
    folder, stored, floats = write(plain(name), tmp_path, layout)
    for rank in range(size):
        for draft in (False, True):
            table = table_of(name, size, rank, draft=draft)
            forms = forms_of(folder, table)
            assert forms.problems == []
            expected = model_of(table, None, sizes(size, rank))
            table.load(expected, floats.items())
            model = model_of(table, forms, sizes(size, rank))
            # Scales may come before or behind their values, and other layers between them.
            filled = forms.table.load(model, reversed(list(stored.items())))
            own = {n for n, _ in model.named_parameters() if "embed" not in n and "lm_" not in n}
            assert own <= filled
            finish_weights(model)
            quantised, kept = assert_equal_weights(model, expected)
            # qkv_a, q_b, o, two of a dense MLP or of shared experts, and the indexer's queries.
            layers = 1 if draft else 2
            indexers = 0 if name == "v3" else layers
            assert quantised == 5 * layers + indexers
            assert kept


def test_layers_in_the_model_s_dtype_are_read_again(
    plain: Callable[[str], Path], tmp_path: Path
) -> None:
    """A second load, of other values, overwrites what the first one gathered."""
    folder, stored, _ = write(plain("v32"), tmp_path, "fp8")
    table = table_of("v32")
    forms = forms_of(folder, table)
    model = model_of(table, forms, sizes())
    name = "model.layers.0.self_attn.kv_b_proj"
    forms.table.load(model, stored.items())
    once = model.get_parameter("model.layers.0.self_attn.weights.kv_b").data.clone()
    again = stored | {f"{name}.weight_scale_inv": 2 * stored[f"{name}.weight_scale_inv"]}
    forms.table.load(model, again.items())
    twice = model.get_parameter("model.layers.0.self_attn.weights.kv_b").data
    torch.testing.assert_close(twice, 2 * once, rtol=0, atol=0)


def test_bad_scales_are_listed_whole(plain: Callable[[str], Path], tmp_path: Path) -> None:
    folder, stored, _ = write(plain("v32"), tmp_path, "fp8")
    table = table_of("v32")
    forms = forms_of(folder, table)
    layer = "model.layers.1"
    attn, experts = f"{layer}.self_attn", f"{layer}.mlp.experts"
    stored[f"{attn}.kv_b_proj.weight_scale"] = stored.pop(f"{attn}.kv_b_proj.weight_scale_inv")
    stored[f"{attn}.indexer.weights_proj.weight_scale_inv"] = torch.ones(1, 1)
    stored[f"{attn}.o_proj.weight_scale_inv"] = torch.full((1, 2), float("nan"))
    stored[f"{experts}.2.up_proj.weight_scale_inv"] = torch.full((2, 1), -1.0)
    stored[f"{attn}.q_b_proj.weight_scale_inv"] = torch.ones(2, 1, dtype=torch.int32)
    scale = stored[f"{attn}.indexer.wk.weight_scale_inv"]
    stored[f"{attn}.indexer.wk.weight_scale_inv"] = scale.repeat(2, 1)
    with pytest.raises(CheckpointError) as caught:
        forms.table.load(model_of(table, forms, sizes()), stored.items())
    text = str(caught.value)
    for part in (
        f"missing {attn}.kv_b_proj.weight_scale_inv [3, 1] "
        f"(closest: {attn}.kv_b_proj.weight_scale)",
        f"unexpected {attn}.kv_b_proj.weight_scale [3, 1]",
        f"unexpected {attn}.indexer.weights_proj.weight_scale_inv",
        f"{attn}.o_proj.weight_scale_inv: 2 scale(s) are negative or no numbers",
        f"{experts}.2.up_proj.weight_scale_inv: 2 scale(s) are negative or no numbers",
        f"dtype of {attn}.q_b_proj.weight_scale_inv is int32, loadable are float32",
        f"shape of {attn}.indexer.wk.weight_scale_inv is [2, 1], expected [1, 1]",
    ):
        assert part in text, part
    assert "7 problem(s)" in text


def rewritten(folder: Path, **words: str | None) -> Path:
    """Change a ModelSlim description: a word by the end of a layer's name, or None to drop it."""
    file = folder / "quant_model_description.json"
    description = json.loads(file.read_text())
    for end, word in words.items():
        for name in [one for one in description if f".{end}." in one]:
            if word is None:
                del description[name]
            else:
                description[name] = word
    file.write_text(json.dumps(description))
    return folder


def test_descriptions_that_do_not_fit_are_listed_whole(
    plain: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, _, _ = write(plain("v32"), tmp_path, "w8a8")
    rewritten(folder, kv_a_proj_with_mqa="FLOAT", q_b_proj=None, wq_b="W8A8_DYNAMICS")
    rewritten(folder, up_proj="W4A8_DYNAMIC")
    text = "\n".join(forms_of(folder, table_of("v32")).problems)
    for part in (
        "quant_model_description.json does not describe model.layers.0.self_attn.q_b_proj.weight",
        "'W8A8_DYNAMICS' for model.layers.0.self_attn.indexer.wq_b, known are FLOAT, W8A8",
        "(closest: W8A8_DYNAMIC)",
        "model.layers.0.self_attn.q_a_proj is W8A8, "
        "model.layers.0.self_attn.kv_a_proj_with_mqa is not quantised; they are computed as one",
        "model.layers.0.mlp.gate_proj is W8A8, model.layers.0.mlp.up_proj is W4A8_DYNAMIC",
        "routed experts of model.layers.1.mlp.experts are stored as W4A8_DYNAMIC and W8A8_DYNAMIC",
    ):
        assert part in text, part


def test_experts_that_are_not_computed_are_refused_by_name(
    plain: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, _, _ = write(plain("v32"), tmp_path, "w8a8")
    words = json.loads((folder / "quant_model_description.json").read_text())
    words |= {name: "W8A8" for name in words if ".experts." in name}
    (folder / "quant_model_description.json").write_text(json.dumps(words))
    problems = forms_of(folder, table_of("v32")).problems
    assert len(problems) == 1
    assert problems[0].startswith("routed experts stored as W8A8: experts are computed with int8")


def test_an_unknown_format_is_refused_by_name(plain: Callable[[str], Path]) -> None:
    config = SPECS["v32"].published_config() | {"quantization_config": {"quant_method": "awq"}}
    with pytest.raises(InvalidInputError, match=r"quant_method='awq'.*known are fp8"):
        resolver_of(config, plain("v32"))


def test_a_slice_that_cuts_a_block_of_experts_is_refused(
    plain: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, _, _ = write(plain("v32"), tmp_path, "fp8")
    forms = forms_of(folder, table_of("v32", 4))
    with pytest.raises(ValueError, match="whole units of 128"):
        sizes(4).module(forms, "model.layers.1.mlp.experts", torch.float32)


def test_scales_of_caches_have_to_fit(plain: Callable[[str], Path], tmp_path: Path) -> None:
    folder, stored, _ = write(plain("v32"), tmp_path, "c8")
    forms = forms_of(folder, table_of("v32"))
    assert forms.cache == CacheDescription("int8", "int8")
    name = "model.layers.0.self_attn.fa_k.scale"
    stored[name] = torch.ones(3, 1)
    save_file(stored, tmp_path / "model.safetensors")
    found = {n: (tuple(t.shape), t.dtype) for n, t in stored.items()}
    (problem,) = forms.table.problems(found)
    assert problem.startswith(f"shape of {name} is [3, 1], expected [8, 1] or [8]")


@pytest.mark.parametrize(
    ("kv", "cache_dtype", "sparse", "family", "wanted"),
    [
        ("int8", "family", True, "A3", True),
        ("int8", "model", True, "A3", False),
        ("int8", "family", False, "A3", False),
        ("int8", "family", True, "cpu", False),
        (None, "family", True, "A3", False),
    ],
)
def test_where_a_checkpoint_s_wish_for_int8_latents_holds(
    kv: str | None, cache_dtype: str, sparse: bool, family: str, wanted: bool
) -> None:
    described = CacheDescription(kv)
    assert wants_int8_latents(described, cache_dtype, sparse=sparse, family=family) is wanted
