"""Quantised checkpoints in every rank's parts: what is held stands for the dequantised slice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from ascend_fused_moe.layers.routed_experts import AscendRoutedExperts
from ascend_fused_moe.quantized_rules import WeightForms, finish_weights
from ascend_fused_moe.testing.table_model import ExpertSizes, model_of
from ascend_models_deepseek.deepseek_v4.attention import DeepseekV4Attention
from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_models_deepseek.deepseek_v4.dspark_config import DSparkSpec
from ascend_models_deepseek.deepseek_v4.dspark_weights import dspark_table
from ascend_models_deepseek.deepseek_v4.quantization import resolver_of
from ascend_models_deepseek.deepseek_v4.sharding import Shard
from ascend_models_deepseek.deepseek_v4.weights import main_table, mtp_table
from ascend_models_deepseek.testing import TinyV4Spec, write_checkpoint
from ascend_models_deepseek.testing.dspark import DSparkShape, random_dspark, write_dspark
from ascend_models_deepseek.testing.quantized_v4 import LAYOUTS, quantise_checkpoint
from ascend_ops_core.checkpoint.table import CheckpointError, WeightTable
from ascend_ops_core.quantized_weights.weight import QuantizedWeight
from ascend_ops_core.testing import assert_close
from safetensors.torch import load_file
from transformers import DeepseekV4Config

Tensors = dict[str, torch.Tensor]
# Two ranks have 128 channels of each expert, a block; heads, groups and latents are cut within one.
TINY = TinyV4Spec(
    seed=7,
    compress_ratios=(0, 4),
    num_hash_layers=1,
    moe_intermediate_size=256,
    n_routed_experts=4,
    o_groups=4,
    mtp="random",
)
SPEC = DeepseekV4Spec.from_config(TINY.original_config())


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(TINY, tmp_path_factory.mktemp("plain"))


@pytest.fixture(params=list(LAYOUTS))
def layout(request: pytest.FixtureRequest) -> str:
    return request.param


def shard_of(size: int = 1, rank: int = 0) -> Shard:
    part = SPEC.vocab_size // size
    return Shard.of(SPEC, size, rank, (rank * part, (rank + 1) * part))


def forms_of(folder: Path, table: WeightTable) -> WeightForms:
    config = json.loads((folder / "config.json").read_text())
    return WeightForms(table, resolver_of(config, folder))


def sizes(size: int = 1, rank: int = 0) -> ExpertSizes:
    inter = SPEC.moe_intermediate_size
    return ExpertSizes(SPEC.n_routed_experts, SPEC.hidden_size, inter, rank, size)


def write(plain: Path, tmp_path: Path, layout: str) -> tuple[Path, Tensors, Tensors]:
    """Folder and tensors of the quantised checkpoint, and the dequantised tensors."""
    quantised, dequantised = tmp_path / "quantised", tmp_path / "dequantised"
    quantise_checkpoint(plain, quantised, dequantised, layout)
    file = "model.safetensors"
    return quantised, load_file(quantised / file), load_file(dequantised / file)


@pytest.mark.parametrize("size", [1, 2])
def test_every_rank_holds_what_the_dequantised_slice_is(
    plain: Path, tmp_path: Path, layout: str, size: int
) -> None:
    folder, stored, floats = write(plain, tmp_path, layout)
    x = torch.randn(5, SPEC.hidden_size)
    ids = torch.tensor([[0, 3], [1, 2], [2, 0], [3, 3], [1, 0]])
    weights = torch.rand(5, 2)
    for rank in range(size):
        table = main_table(SPEC, shard_of(size, rank))
        forms = forms_of(folder, table)
        assert forms.problems == []
        expected = model_of(table, None, sizes(size, rank))
        table.load(expected, floats.items())
        model = model_of(table, forms, sizes(size, rank))
        filled = forms.table.load(model, stored.items())
        assert filled == {name for name, _ in model.named_parameters()}
        finish_weights(model)
        plain_weights, seen = dict(expected.named_parameters()), 0
        for name, module in model.named_modules():
            if isinstance(module, QuantizedWeight):
                right = plain_weights.pop(name)
                right = right.reshape(-1, right.shape[-1])
                assert module.shape == tuple(right.shape)
                assert_close(module(torch.eye(right.shape[1])).T, right)
                seen += 1
            if isinstance(module, AscendRoutedExperts):
                other = expected.get_submodule(name)
                got = module.forward_tokens(x, weights, ids)
                assert_close(got, other.forward_tokens(x, weights, ids), scale=8)
                for part in ("w13", "w2"):
                    del plain_weights[f"{name}.{part}"]
        assert seen == 2 * SPEC.num_hidden_layers * 3 + 1
        kept = {n: p for n, p in model.named_parameters() if n in plain_weights}
        assert set(kept) == set(plain_weights)
        for name, value in kept.items():
            torch.testing.assert_close(value, plain_weights[name], rtol=0, atol=0)


def test_the_draft_is_checked_in_its_own_form(plain: Path, tmp_path: Path) -> None:
    folder, stored, _ = write(plain, tmp_path, "flash")
    forms = forms_of(folder, mtp_table(SPEC, shard_of()))
    found = {name: (tuple(t.shape), t.dtype) for name, t in stored.items()}
    assert forms.table.problems(found) == []
    param = f"model.layers.{SPEC.num_hidden_layers}"
    for name in ("e_proj", "h_proj", "block.attn.wqa_wkv", "block.ffn.shared_experts.w2"):
        assert forms.held(f"{param}.{name}") is not None
    assert forms.experts(f"{param}.block.ffn.experts") is not None


def test_a_block_draft_holds_what_the_dequantised_one_is(plain: Path, tmp_path: Path) -> None:
    """Its context rows too, which are a part of a weight that is held as one."""
    shape = DSparkShape((0,), layers=1, markov_rank=8)
    draft = random_dspark(DeepseekV4Config.from_pretrained(plain), shape, seed=3)
    folder, stored, floats = write(
        write_dspark(draft, plain, tmp_path / "draft"), tmp_path, "flash"
    )
    spec = DSparkSpec.from_config(json.loads((folder / "config.json").read_text()))
    table = dspark_table(spec, shard_of())
    forms = forms_of(folder, table)
    assert forms.problems == []
    assert forms.held("model.markov_head.markov_w1") is None
    model, expected = model_of(table, forms, sizes()), model_of(table, None, sizes())
    forms.table.load(model, stored.items())
    finish_weights(model)
    table.load(expected, floats.items())
    width = spec.hidden_size
    combine = model.get_submodule("model.main_proj")
    assert_close(combine(torch.eye(width)).T, expected.get_parameter("model.main_proj"))
    name = f"model.layers.{spec.layers[0]}.block.attn"
    states, turn = torch.randn(3, width), torch.zeros(3, spec.main.rope_head_dim // 2)
    rows = []
    for one in (model, expected):
        block = one.get_submodule(name)
        block.norm_eps = 1e-6
        rows.append(DeepseekV4Attention.shared_kv(block, states, turn + 1, turn))
    assert rows[0].shape == (3, spec.main.head_dim)
    assert_close(rows[0], rows[1], scale=8)


def test_bad_scales_are_listed_whole(plain: Path, tmp_path: Path) -> None:
    folder, stored, _ = write(plain, tmp_path, "flash")
    table = main_table(SPEC, shard_of())
    forms = forms_of(folder, table)
    stored["layers.0.attn.wkv.scal"] = stored.pop("layers.0.attn.wkv.scale")
    stored["layers.1.attn.compressor.wkv.scale"] = torch.ones(1, 1)
    scale = stored["layers.0.ffn.experts.2.w3.scale"].view(torch.uint8).clone()
    scale[3, 1] = 255
    stored["layers.0.ffn.experts.2.w3.scale"] = scale.view(torch.float8_e8m0fnu)
    stored["layers.0.attn.wq_b.scale"] = torch.ones(4, 1)
    stored["layers.1.attn.wo_b.scale"] = stored["layers.1.attn.wo_b.scale"].repeat(2, 1)
    with pytest.raises(CheckpointError) as caught:
        forms.table.load(model_of(table, forms, sizes()), stored.items())
    text = str(caught.value)
    for part in (
        "missing layers.0.attn.wkv.scale [1, 1] (closest: layers.0.attn.wkv.scal)",
        "unexpected layers.0.attn.wkv.scal [1, 1] (closest: layers.0.attn.wkv.scale)",
        "unexpected layers.1.attn.compressor.wkv.scale",
        "layers.0.ffn.experts.2.w3.scale: 1 scale(s) are NaN (code 255)",
        "dtype of layers.0.attn.wq_b.scale is float32, loadable are float8_e8m0fnu, uint8",
        "shape of layers.1.attn.wo_b.scale is [2, 1], expected [1, 1]",
    ):
        assert part in text, part
    assert "6 problem(s)" in text


def test_a_slice_that_cuts_a_block_of_experts_is_refused(plain: Path, tmp_path: Path) -> None:
    folder, _, _ = write(plain, tmp_path, "flash_base")
    forms = forms_of(folder, main_table(SPEC, shard_of(4)))
    with pytest.raises(ValueError, match="whole units of 128"):
        sizes(4).module(forms, "model.layers.0.ffn.experts", torch.float32)
