"""DeepSeek-V4's config: both spellings agree, and every impossible value is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_models_deepseek.deepseek_v4.hf_config import AscendDeepseekV4Config
from ascend_models_deepseek.testing import SPECS
from ascend_ops_core import InvalidInputError
from ascend_ops_core.ops.rotary import YarnScaling
from transformers import DeepseekV4Config


def original(name: str = "mixed", **changes: Any) -> dict[str, Any]:
    config = SPECS[name].original_config() | changes
    return {key: value for key, value in config.items() if value is not ...}


@pytest.fixture(params=sorted(SPECS))
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    return original(request.param)


def test_original_keys(config: dict[str, Any]) -> None:
    spec = DeepseekV4Spec.from_config(config)
    for key in (
        "vocab_size",
        "hidden_size",
        "moe_intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "head_dim",
        "q_lora_rank",
        "n_routed_experts",
        "num_experts_per_tok",
        "num_hash_layers",
        "hc_mult",
        "hc_sinkhorn_iters",
        "swiglu_limit",
        "sliding_window",
        "o_groups",
        "o_lora_rank",
        "index_n_heads",
        "index_head_dim",
        "index_topk",
        "rope_theta",
        "compress_rope_theta",
        "routed_scaling_factor",
        "max_position_embeddings",
    ):
        assert getattr(spec, key) == config[key], key
    assert spec.rope_head_dim == config["qk_rope_head_dim"]
    assert spec.num_mtp_layers == config["num_nextn_predict_layers"]
    layers = spec.num_hidden_layers
    assert list(spec.compress_ratios) == config["compress_ratios"][:layers]
    assert [spec.compress_ratio(i) for i in range(layers)] == list(spec.compress_ratios)
    assert all(spec.compress_ratio(layers + i) == 0 for i in range(spec.num_mtp_layers))
    hashed = [spec.is_hash_layer(i) for i in range(layers)]
    assert hashed == [i < config["num_hash_layers"] for i in range(layers)]
    scaling = config["rope_scaling"]
    assert spec.yarn == YarnScaling(
        scaling["factor"],
        scaling["original_max_position_embeddings"],
        scaling["beta_fast"],
        scaling["beta_slow"],
    )


def test_transformers_keys_and_objects_agree(config: dict[str, Any]) -> None:
    expected = DeepseekV4Spec.from_config(config)
    theirs = DeepseekV4Config(**config)
    assert "compress_ratios" not in theirs.to_dict()
    assert DeepseekV4Spec.from_config(theirs.to_dict()) == expected
    assert DeepseekV4Spec.from_config(theirs) == expected
    for source in (config, theirs.to_dict()):
        ours = AscendDeepseekV4Config(**source)
        assert DeepseekV4Spec.from_config(ours) == expected
        again = AscendDeepseekV4Config(**ours.to_dict())
        assert DeepseekV4Spec.from_config(again) == expected


def test_transformers_defaults_are_the_published_shape() -> None:
    spec = DeepseekV4Spec.from_config(DeepseekV4Config().to_dict())
    assert (spec.head_dim, spec.rope_head_dim, spec.index_topk) == (512, 64, 512)
    assert (spec.num_hidden_layers, spec.num_hash_layers, spec.num_mtp_layers) == (43, 3, 1)
    assert spec.compress_ratios[:4] == (128, 128, 128, 4)
    assert set(spec.compress_ratios) == {4, 128}
    assert spec.yarn is None
    assert spec == DeepseekV4Spec.from_config(
        AscendDeepseekV4Config(**DeepseekV4Config().to_dict())
    )


def test_flat_rope_parameters_do_not_move_the_theta_of_the_compressed_branch() -> None:
    flat = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0}
    flat |= {"original_max_position_embeddings": 256}
    changed = original(rope_scaling=..., rope_parameters=flat)
    spec = DeepseekV4Spec.from_config(AscendDeepseekV4Config(**changed))
    assert (spec.rope_theta, spec.compress_rope_theta) == (1e4, 1.6e5)
    assert spec == DeepseekV4Spec.from_config(original())
    assert spec == DeepseekV4Spec.from_config(DeepseekV4Config(**changed).to_dict())


def test_our_config_has_original_keys_only() -> None:
    config = AscendDeepseekV4Config(**DeepseekV4Config(**original()).to_dict())
    for key in ("layer_types", "mlp_layer_types", "partial_rotary_factor"):
        assert not getattr(config, key, None), key
    assert config.compress_ratios == original()["compress_ratios"]
    assert config.num_hash_layers == 2
    assert config.qk_rope_head_dim == 16
    assert config.model_type == "deepseek_v4"


@pytest.mark.parametrize("spelling", ["rotary", "factor", "both"])
def test_partial_rotation_in_either_spelling(spelling: str) -> None:
    change = {"rotary": {}, "factor": {"qk_rope_head_dim": ...}, "both": {}}[spelling]
    if spelling != "rotary":
        change = change | {"partial_rotary_factor": 0.25}
    assert DeepseekV4Spec.from_config(original(**change)).rope_head_dim == 16


def test_optional_keys() -> None:
    bare = original(rope_scaling=None, n_shared_experts=..., num_nextn_predict_layers=...)
    spec = DeepseekV4Spec.from_config(bare | {"swiglu_limit": None})
    assert spec.yarn is None
    assert spec.n_shared_experts == 1
    assert spec.num_mtp_layers == 0
    assert spec.swiglu_limit == 0
    renamed = original(n_routed_experts=..., num_local_experts=8)
    assert DeepseekV4Spec.from_config(renamed).n_routed_experts == 8


def test_mtp_layers_need_not_be_listed() -> None:
    listed, unlisted = original("tensor_parallel"), original("tensor_parallel")
    assert len(listed["compress_ratios"]) == listed["num_hidden_layers"] + 1
    unlisted["compress_ratios"] = listed["compress_ratios"][:-1]
    assert DeepseekV4Spec.from_config(listed) == DeepseekV4Spec.from_config(unlisted)


def test_a_ratio_of_one_means_none() -> None:
    ratios = [1, 128, 4, 128, 4, 1]
    spec = DeepseekV4Spec.from_config(original(compress_ratios=ratios))
    assert spec.compress_ratios == (0, 128, 4, 128, 4, 0)


SWA, CSA, HCA = (
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
)
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"hidden_size": ...}, r"'hidden_size'.*needs it.*config\.json"),
    "no ratios": ({"compress_ratios": ...}, r"'compress_ratios'.*one ratio per layer"),
    "short": ({"compress_ratios": [0, 4]}, r"2 entries.*6 layers"),
    "ratio": ({"compress_ratios": [0, 8, 4, 128, 4, 0]}, r"ratio 8.*0, 4, 128"),
    "mtp ratio": ({"compress_ratios": [0, 4, 4, 4, 4, 0, 4]}, r"\[4\] of the MTP.*ratio 0"),
    "fraction": ({"index_topk": 1.5}, r"index_topk=1\.5.*integer"),
    "text": ({"index_topk": "8"}, r"index_topk='8'.*integer"),
    "bool": ({"index_topk": True}, r"index_topk=True.*integer"),
    "nan": ({"index_topk": float("nan")}, r"index_topk=nan.*integer"),
    "infinite": ({"index_topk": float("inf")}, r"index_topk=inf.*integer"),
    "negative": ({"index_topk": -8}, r"index_topk=-8.*non-negative"),
    "no groups": ({"o_groups": 0}, r"o_groups=0.*at least 1"),
    "no window": ({"sliding_window": 0}, r"sliding_window=0.*at least 1"),
    "no choice": ({"num_experts_per_tok": 0}, r"num_experts_per_tok=0.*at least 1"),
    "choices": ({"num_experts_per_tok": 9}, r"num_experts_per_tok=9.*8 routed"),
    "groups": ({"o_groups": 3}, r"num_attention_heads=8.*divisible by o_groups \(3\)"),
    "limit": ({"swiglu_limit": -1.0}, r"swiglu_limit=-1\.0.*positive.*0 or null"),
    "odd head": ({"head_dim": 63}, r"head_dim=63.*divisible"),
    "rotary": ({"qk_rope_head_dim": 66}, r"rotary dimension 66.*head size 64"),
    "index rotary": ({"qk_rope_head_dim": 48}, r"qk_rope_head_dim=48.*32 channels"),
    "spellings": ({"partial_rotary_factor": 0.5}, r"rotary_dim=16.*0\.5.*gives 32"),
    "scoring": ({"scoring_func": "tanh"}, r"scoring_func='tanh'.*sqrtsoftplus"),
    "tied": ({"tie_word_embeddings": True}, r"tie_word_embeddings=true.*head\.weight"),
    "scaling": ({"rope_scaling": {"type": "linear", "factor": 2}}, r"'linear'.*'yarn' or none"),
    "no factor": ({"rope_scaling": {"type": "yarn"}}, r"without 'factor'.*YaRN needs it"),
    "zero factor": (
        {"rope_scaling": {"type": "yarn", "factor": 0, "original_max_position_embeddings": 64}},
        r"factor=0.*positive",
    ),
    "mscale": (
        {
            "rope_scaling": {
                "type": "yarn",
                "factor": 2,
                "original_max_position_embeddings": 64,
                "attention_factor": 1.2,
            }
        },
        r"attention_factor=1\.2.*does not scale",
    ),
    "layer type": (
        {"compress_ratios": ..., "layer_types": [SWA, "full_attention", CSA, HCA, CSA, SWA]},
        r"'full_attention'.*known are sliding_attention",
    ),
    "rate": (
        {
            "compress_ratios": ...,
            "layer_types": [SWA, HCA, CSA, HCA, CSA, SWA],
            "compress_rates": {CSA: 8},
        },
        r"ratio 8.*0, 4, 128",
    ),
    "swapped rate": (
        {
            "compress_ratios": ...,
            "layer_types": [SWA, HCA, CSA, HCA, CSA, SWA],
            "compress_rates": {CSA: 128},
        },
        r"compress_rates\['compressed_sparse_attention'\]=128.*rate of 4",
    ),
    "hash order": (
        {
            "num_hash_layers": ...,
            "mlp_layer_types": ["moe", "hash_moe", "moe", "moe", "moe", "moe"],
        },
        r"mlp_layer_types=\['moe', 'hash_moe'.*hash layers first",
    ),
    "mlp type": (
        {"num_hash_layers": ..., "mlp_layer_types": ["dense"] * 6},
        r"mlp_layer_types=\['dense'.*hash_moe, moe",
    ),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_errors_name_value_limit_and_remedy(case: str) -> None:
    change, text = BAD[case]
    with pytest.raises(InvalidInputError, match=text) as caught:
        DeepseekV4Spec.from_config(original(**change))
    assert caught.value.remedy


@pytest.mark.parametrize("case", ["layer type", "rate", "hash order", "mlp type"])
def test_rewriting_transformers_keys_hides_no_error(case: str) -> None:
    change, _ = BAD[case]
    with pytest.raises(InvalidInputError):
        DeepseekV4Spec.from_config(AscendDeepseekV4Config(**original(**change)))
