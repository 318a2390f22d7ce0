"""Kimi's config: the published keys, and every rule that a bad one breaks."""

from __future__ import annotations

from typing import Any

import pytest
from ascend_models_kimi.kimi_linear.config import DeltaAttentionSpec, KimiLinearSpec
from ascend_models_kimi.kimi_linear.hf_config import AscendKimiLinearConfig
from ascend_models_kimi.testing import KIMI_LINEAR_SPECS
from ascend_ops_core import InvalidInputError

TINY = KIMI_LINEAR_SPECS["kimi_linear"].published_config()
KIMI_K3 = {
    "hidden_act": "situ",
    "activation_situ_beta": 4.0,
    "activation_situ_linear_beta": 25.0,
    "routed_expert_hidden_size": 48,
    "latent_moe_use_norm": True,
    "attn_res_block_size": 2,
    "mla_use_output_gate": True,
    "num_nextn_predict_layers": 1,
    "linear_attn_config": TINY["linear_attn_config"]
    | {"use_full_rank_gate": True, "gate_lower_bound": -5.0},
}


def test_the_published_keys() -> None:
    spec = KimiLinearSpec.from_config(TINY)
    assert spec == KimiLinearSpec.from_config(AscendKimiLinearConfig(**TINY))
    assert spec.delta == DeltaAttentionSpec(4, 32, 4, False, None)
    assert spec.delta_layers == (True, True, False, True, False)
    assert spec.moe_layers == (False, True, True, True, True)
    assert (spec.max_position_embeddings, spec.rms_norm_eps) == (4096, 1e-5)
    assert (spec.qk_head_dim, spec.expert_hidden_size, spec.situ_beta) == (24, 96, None)
    assert spec.softmax_scale == pytest.approx(24**-0.5)


def test_what_kimi_k3_adds() -> None:
    spec = KimiLinearSpec.from_config({"text_config": TINY | KIMI_K3})
    assert spec.delta == DeltaAttentionSpec(4, 32, 4, True, -5.0)
    assert (spec.situ_beta, spec.situ_linear_beta) == (4.0, 25.0)
    assert (spec.routed_hidden_size, spec.expert_hidden_size, spec.latent_norm) == (48, 48, True)
    assert (spec.attn_res_block_size, spec.mla_output_gate) == (2, True)
    draft = spec.num_hidden_layers
    assert (spec.is_delta_layer(draft), spec.is_moe_layer(draft)) == (False, True)


def test_a_model_without_experts() -> None:
    spec = KimiLinearSpec.from_config(TINY | {"num_experts": None, "num_shared_experts": 0})
    assert spec.moe_layers == (False,) * 5
    assert spec.n_routed_experts == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_lora_rank": None}, "config without 'kv_lora_rank'"),
        ({"mla_use_nope": False}, "mla_use_nope=False"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings=True"),
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim=7"),
        ({"num_experts_per_token": 9}, "num_experts_per_token=9 of num_experts=8"),
        ({"num_expert_group": 3}, "num_expert_group=3"),
        ({"topk_group": 2}, "topk_group=2"),
        ({"latent_moe_use_norm": True}, "without routed_expert_hidden_size"),
        ({"hidden_act": "situ", "activation_situ_beta": -1.0}, "activation_situ_beta=-1.0"),
        ({"linear_attn_config": [1]}, r"linear_attn_config=\[1\]"),
        ({"linear_attn_config": None}, r"kda_layers=\[\], full_attn_layers=\[\]"),
        ({"num_hidden_layers": 6}, "num_hidden_layers=6"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        KimiLinearSpec.from_config(TINY | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kda_layers": [1, 2, 3, 4]}, "stands in one of them, once"),
        ({"kda_layers": [1, 2, 3, 4, 5], "full_attn_layers": []}, "layers of both kinds"),
        ({"head_dim": None}, "config without 'head_dim'"),
        ({"short_conv_kernel_size": 1}, "short_conv_kernel_size=1"),
        ({"gate_lower_bound": 0.0}, "gate_lower_bound=0.0"),
        ({"gate_lower_bound": -6.0}, "gate_lower_bound=-6.0"),
    ],
)
def test_what_is_refused_of_delta_attention(changes: dict[str, Any], message: str) -> None:
    config = TINY | {"linear_attn_config": TINY["linear_attn_config"] | changes}
    with pytest.raises(InvalidInputError, match=message):
        KimiLinearSpec.from_config(config)


def test_vllm_s_class_leaves_out_what_the_checkpoint_does() -> None:
    config = AscendKimiLinearConfig(**{k: v for k, v in TINY.items() if k != "mla_use_nope"})
    assert config.mla_use_nope is None
    assert config.max_position_embeddings is None
    assert KimiLinearSpec.from_config(config).max_position_embeddings == 4096
