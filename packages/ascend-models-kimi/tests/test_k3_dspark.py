"""Kimi-K3's DSpark draft: its config and its checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ascend_models_kimi.kimi_k3.dspark_config import K3DSparkSpec
from ascend_models_kimi.kimi_k3.dspark_weights import dspark_table
from ascend_models_kimi.kimi_linear.config import KimiLinearSpec
from ascend_models_kimi.kimi_linear.sharding import Shard
from ascend_models_kimi.testing import K3_SPECS, TinyK3DSparkSpec, write_k3_dspark
from ascend_ops_core.checkpoint.headers import check_headers, read_headers
from ascend_ops_core.checkpoint.table import CheckpointError
from ascend_ops_core.errors import InvalidInputError
from safetensors.torch import load_file, save_file

TINY = TinyK3DSparkSpec(K3_SPECS["k3"])
TARGET = KimiLinearSpec.from_config(K3_SPECS["k3"].text_config())
YARN = {
    "rope_type": "deepseek_yarn",
    "rope_theta": 50000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}


def spec_of(**fields: Any) -> K3DSparkSpec:
    config = TINY.config() | fields
    return K3DSparkSpec.from_config(
        {name: value for name, value in config.items() if value is not None}, TARGET
    )


def test_what_a_config_says() -> None:
    spec = spec_of()
    assert spec.target_layers == (0, 2, 4)
    assert (spec.mask_token, spec.markov_rank, spec.theta) == (3, 16, 100.0)
    assert spec.text.is_delta_layer(0) is spec.text.is_moe_layer(1) is False
    assert [spec.queries(3), spec_of(sample_from_anchor=False).queries(3)] == [3, 4]
    assert spec_of(mask_token_id=None, dspark_noise_token_id=9).mask_token == 9
    assert spec_of(rope_theta=None).theta == 50000.0
    assert spec.softmax_scale == pytest.approx((12 + 8) ** -0.5)
    assert not spec.causal
    assert spec_of(dflash_config={"causal": True}).causal


def test_yarn_changes_the_scale_of_scores() -> None:
    spec = spec_of(rope_parameters=YARN)
    assert spec.yarn is not None
    assert (spec.yarn.factor, spec.theta) == (4.0, 50000.0)
    factor = 1 + 0.1 * 1.3862943611198906
    assert spec.softmax_scale == pytest.approx(20**-0.5 * factor * factor)
    plain = spec_of(rope_parameters=YARN | {"mscale": None, "mscale_all_dim": None})
    assert plain.softmax_scale == pytest.approx(20**-0.5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"q_lora_rank": None}, "q_lora_rank"),
        ({"markov_rank": 0}, "markov_rank"),
        ({"num_target_layers": 2}, "num_target_layers=2"),
        ({"target_layer_ids": [0, 2, 5]}, "5 layers"),
        ({"target_layer_ids": []}, "target_layer_ids"),
        ({"vocab_size": 400}, "vocab_size=400"),
        ({"draft_vocab_size": 100}, "draft_vocab_size=100"),
        ({"target_hidden_size": 64}, "target_hidden_size=64"),
        ({"kv_lora_rank": 16}, "caches 24 values"),
        ({"mask_token_id": 512}, "mask_token_id=512"),
        ({"mask_token_id": None}, "mask_token_id=None"),
        ({"mla_use_output_gate": True}, "mla_use_output_gate"),
        ({"mla_use_qk_norm": True}, "mla_use_qk_norm"),
        ({"dspark_bonus_anchor": True}, "dspark_bonus_anchor"),
        ({"hidden_act": "situ"}, "hidden_act"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "llama3"),
        ({"rope_parameters": YARN | {"mscale": 0.5}}, "mscale"),
    ],
)
def test_a_config_that_cannot_be_served(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        spec_of(**fields)


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_tensor_has_a_place(tmp_path: Path, ranks: int) -> None:
    folder = write_k3_dspark(TINY, tmp_path)
    spec = spec_of()
    table = dspark_table(spec, Shard.of(spec.text, ranks, ranks - 1, (0, 512)))
    assert set(table.rules) == set(read_headers(folder))
    check_headers(table, str(folder))


def test_all_problems_at_once_and_what_is_not_read(tmp_path: Path) -> None:
    folder = write_k3_dspark(replace(TINY, intermediate_size=96), tmp_path)
    tensors = load_file(folder / "model.safetensors")
    spec = spec_of(intermediate_size=96)
    table = dspark_table(spec, Shard.of(spec.text, 1, 0, (0, 512)))
    # For training, and copies of the target's.
    for name in ("confidence_head.proj.weight", "embed_tokens.weight", "lm_head.weight"):
        tensors[name] = tensors["context_norm.weight"].clone()
    save_file(tensors, folder / "model.safetensors")
    check_headers(table, str(folder))
    del tensors["final_norm.weight"]
    tensors["layers.1.mlp.up_proj.weight"] = tensors["layers.1.mlp.up_proj.weight"][:-1].clone()
    tensors["layers.2.mlp.up_proj.weight"] = tensors["layers.0.mlp.up_proj.weight"].clone()
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        check_headers(table, str(folder))
    for part in ("final_norm.weight", "layers.1.mlp.up_proj", "layers.2.mlp.up_proj"):
        assert part in str(caught.value)
