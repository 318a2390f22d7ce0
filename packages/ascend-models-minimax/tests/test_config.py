"""MiniMax-M3's config: both spellings, and every rule that a bad one breaks."""

from __future__ import annotations

from typing import Any

import pytest
from ascend_models_minimax.minimax_m3.config import BlockSelection, MiniMaxM3Spec
from ascend_models_minimax.minimax_m3.vision.config import VisionSpec
from ascend_models_minimax.testing import M3_SPECS
from ascend_ops_core import InvalidInputError

TINY = M3_SPECS["m3"]


def transformers_config() -> Any:
    """The same config as transformers reads it."""
    from transformers import MiniMaxM3VLConfig

    return MiniMaxM3VLConfig(**TINY.published_config())


def changed(changes: dict[str, Any], blocks: dict[str, Any] | None = None) -> dict[str, Any]:
    text = TINY.text_config() | changes
    if blocks is not None:
        text["sparse_attention_config"] = text["sparse_attention_config"] | blocks
    return text


def test_the_published_keys() -> None:
    spec = MiniMaxM3Spec.from_config(TINY.published_config())
    assert spec == MiniMaxM3Spec.from_config(TINY.text_config())
    assert spec.selection == BlockSelection(2, 32, 16, 4, 0, 1)
    assert spec.sparse_layers == (False, True, True, False, True)
    assert spec.moe_layers == (False, False, True, True, True)
    assert (spec.rotary_dim, spec.rope_theta, spec.num_mtp_layers) == (16, 5e6, 1)
    assert spec.is_sparse_layer(5)
    assert spec.is_moe_layer(5)


def test_transformers_keys_say_the_same() -> None:
    theirs = transformers_config()
    names = ("index_topk_blocks", "layer_types", "mlp_layer_types", "rope_parameters")
    assert all(getattr(theirs.text_config, name) for name in names)
    assert not hasattr(theirs.text_config, "sparse_attention_config")
    assert MiniMaxM3Spec.from_config(theirs) == MiniMaxM3Spec.from_config(TINY.published_config())


def test_rotary_dim_alone_is_the_factor() -> None:
    assert MiniMaxM3Spec.from_config(changed({"partial_rotary_factor": None})).rotary_dim == 16
    assert MiniMaxM3Spec.from_config(changed({"rotary_dim": None})).rotary_dim == 16
    both = {"partial_rotary_factor": None, "rotary_dim": None}
    assert MiniMaxM3Spec.from_config(changed(both)).rotary_dim == TINY.head_dim


def test_the_rotation_s_base() -> None:
    theirs = type(transformers_config().text_config)
    for given in ({}, {"rope_theta": 1e4}, {"rope_parameters": {"rope_theta": 2e4}}):
        config = {key: one for key, one in TINY.text_config().items() if key != "rope_theta"}
        expected = theirs(**config | given).rope_parameters["rope_theta"]
        assert MiniMaxM3Spec.from_config(config | given).rope_theta == expected


def test_without_lists_all_layers_have_experts_and_full_attention() -> None:
    config = changed({"moe_layer_freq": None, "sparse_attention_config": None})
    spec = MiniMaxM3Spec.from_config(config | {"num_mtp_modules": 0})
    assert (spec.moe_layers, spec.sparse_layers) == ((True,) * 5, (False,) * 5)
    assert spec.selection is None


@pytest.mark.parametrize(
    ("changes", "blocks", "message"),
    [
        ({"num_hidden_layers": None}, None, "without 'num_hidden_layers'"),
        ({"num_key_value_heads": 3}, None, "num_key_value_heads=3"),
        ({"hidden_act": "gelu"}, None, "hidden_act='gelu'"),
        ({"scoring_func": "softmax"}, None, "scoring_func='softmax'"),
        ({"use_gemma_norm": False}, None, "use_gemma_norm=False"),
        ({"qk_norm_type": "per_layer"}, None, "qk_norm_type='per_layer'"),
        ({"attention_output_gate": True}, None, "attention_output_gate=True"),
        ({"tie_word_embeddings": True}, None, "tie_word_embeddings=True"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, None, "type 'yarn'"),
        ({"rotary_dim": 24}, None, "rotary_dim=24 beside partial_rotary_factor=0.5"),
        ({"rotary_dim": None, "partial_rotary_factor": 1.5}, None, "48 rotated channels"),
        ({"rotary_dim": 7, "partial_rotary_factor": None}, None, "7 rotated channels"),
        ({"swiglu_limit": 0}, None, "swiglu_limit=0"),
        ({"shared_intermediate_size": 33}, None, "shared_intermediate_size=33"),
        ({"num_experts_per_tok": 9}, None, "num_experts_per_tok=9"),
        ({"num_local_experts": 0}, None, "num_local_experts=0"),
        ({"moe_layer_freq": [0, 1]}, None, r"\[0, 1\] \(mlp_layer_types"),
        ({"sparse_attention_config": [1]}, None, r"sparse_attention_config=\[1\]"),
        ({}, {"sparse_attention_freq": [1] * 4}, "num_hidden_layers=5"),
        ({}, {"sparse_num_index_heads": 4}, "sparse_num_index_heads=4"),
        ({}, {"sparse_index_dim": 8}, "sparse_index_dim=8"),
        ({}, {"sparse_block_size": 0}, "index_block_size=0"),
        ({}, {"sparse_topk_blocks": None}, "without 'index_topk_blocks'"),
        ({}, {"sparse_score_type": "mean"}, "sparse_score_type='mean'"),
        ({}, {"sparse_disable_index_value": [0] * 5}, "sparse_disable_index_value"),
    ],
)
def test_bad_configs_are_refused(
    changes: dict[str, Any], blocks: dict[str, Any] | None, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        MiniMaxM3Spec.from_config(changed(changes, blocks))


def test_the_vision_config_in_both_spellings() -> None:
    published = VisionSpec.from_config(TINY.published_config())
    assert (published.axis_dim, published.patch_values, published.segment_frames) == (10, 1176, 4)
    assert (published.spatial_merge_size, published.temporal_patch_size) == (2, 2)
    assert VisionSpec.from_config(transformers_config()) == published


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 3}, "num_attention_heads=3"),
        ({"hidden_act": "quick_gelu"}, "hidden_act='quick_gelu'"),
        ({"rope_mode": "2d"}, "rope_mode='2d'"),
        ({"patch_size": 0}, "patch_size=0"),
        ({"img_token_compression_config": 2}, "img_token_compression_config=2"),
        (
            {"img_token_compression_config": {"image_token_compression_method": "pool"}},
            "image_token_compression_method='pool'",
        ),
        (
            {"img_token_compression_config": {"spatial_merge_size": 0}},
            "spatial_merge_size=0",
        ),
    ],
)
def test_bad_vision_configs_are_refused(changes: dict[str, Any], message: str) -> None:
    config = TINY.published_config()
    config["vision_config"] = config["vision_config"] | changes
    with pytest.raises(InvalidInputError, match=message):
        VisionSpec.from_config(config)


def test_a_text_config_alone_has_no_vision() -> None:
    with pytest.raises(InvalidInputError, match="without vision_config"):
        VisionSpec.from_config(TINY.text_config())
