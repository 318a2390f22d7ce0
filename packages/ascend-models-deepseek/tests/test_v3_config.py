"""DeepSeek-V3's config: what is read from it, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from ascend_models_deepseek.deepseek_v3.config import DeepseekV3Spec
from ascend_models_deepseek.deepseek_v3.sharding import Shard
from ascend_models_deepseek.testing.tiny_v3 import V3_SPECS
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.layers.rotary import ComplexExpRotaryEmbedding

TINY = V3_SPECS["v3"].published_config()
PUBLISHED: dict[str, Any] = TINY | {
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "max_position_embeddings": 163840,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        PUBLISHED["rope_scaling"],
        PUBLISHED["rope_scaling"] | {"mscale": 0.707, "mscale_all_dim": 1.0},
        {k: v for k, v in PUBLISHED["rope_scaling"].items() if not k.startswith("mscale")},
        PUBLISHED["rope_scaling"] | {"attention_factor": 1.25},
    ],
    ids=["plain", "published", "two_mscales", "no_mscale", "attention_factor"],
)
def test_rotation_and_scale_equal_transformers(scaling: dict[str, Any] | None) -> None:
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as hf

    config = PUBLISHED | {"rope_scaling": scaling}
    theirs = DeepseekV3Config(**config)
    attention = hf.DeepseekV3Attention(theirs, 0)
    positions = torch.tensor([[0, 1, 100, 4095, 5000]])
    cos, sin = hf.DeepseekV3RotaryEmbedding(theirs)(torch.zeros(1), positions)
    for read in (config, theirs):
        spec = DeepseekV3Spec.from_config(read)
        assert spec.softmax_scale == pytest.approx(attention.scaling, rel=1e-6)
        table = ComplexExpRotaryEmbedding(
            64, spec.rope_theta, 5001, spec.yarn, spec.rope_table_scale
        )
        own_cos, own_sin = table.gather(positions[0])
        # Both round their frequencies to float32, and an angle is a position times one of them.
        bar = spec.rope_table_scale * (1e-6 + positions[0, :, None] * 2.4e-7)
        assert ((own_cos - cos[0, :, :32]).abs() <= bar).all()
        assert ((own_sin - sin[0, :, :32]).abs() <= bar).all()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kv_lora_rank": None}, "kv_lora_rank"),
        ({"kv_lora_rank": 0}, "kv_lora_rank=0"),
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim=7"),
        ({"n_group": 3}, "n_group=3"),
        ({"topk_group": 5}, "topk_group=5"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok=9"),
        ({"scoring_func": "tanh"}, "tanh"),
        ({"attention_bias": True}, "attention_bias"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "linear"),
        ({"rope_scaling": {"type": "yarn", "factor": 2}}, "original_max_position_embeddings"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers=2.5"),
    ],
)
def test_what_cannot_be_served_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        DeepseekV3Spec.from_config(TINY | change)


def test_which_layers_are_dense() -> None:
    spec = replace(DeepseekV3Spec.from_config(TINY), first_k_dense_replace=2, moe_layer_freq=2)
    assert [spec.is_dense_layer(layer) for layer in range(5)] == [True, True, False, True, False]
    assert replace(spec, n_routed_experts=0).is_dense_layer(4)


def test_shards_cover_everything_once() -> None:
    spec = DeepseekV3Spec.from_config(TINY)
    shards = [Shard.of(spec, 4, rank, (0, 0)) for rank in range(4)]
    for name, total in (
        ("heads", spec.num_attention_heads),
        ("dense", spec.intermediate_size),
        ("intermediate", spec.moe_intermediate_size),
        ("shared", spec.moe_intermediate_size),
    ):
        ranges = [getattr(shard, name) for shard in shards]
        assert [i for start, stop in ranges for i in range(start, stop)] == list(range(total))
    whole = Shard.of(spec, 4, 1, (0, 0), whole_experts=True)
    assert whole.intermediate == (0, spec.moe_intermediate_size)
    assert whole.shared == shards[1].shared


@pytest.mark.parametrize("size", [3, 5, 16])
def test_ranks_that_do_not_divide_are_refused(size: int) -> None:
    spec = DeepseekV3Spec.from_config(TINY)
    with pytest.raises(InvalidInputError, match=r"must divide .* Use one of \[1, 2, 4, 8\]"):
        Shard.of(spec, size, 0, (0, 0))
