"""What of vLLM's own models is refused in the user's process, and how Ling 2.5's config is read."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ascend_ops_core import InvalidInputError
from ascend_vllm_plugin.compat.bailing_config import read_ling_configs
from ascend_vllm_plugin.testing import BAILING_SPECS
from ascend_vllm_plugin.vllm_models import check_vllm_models


def config(ranks: int, **fields: Any) -> Any:
    hf = SimpleNamespace(**fields)
    return SimpleNamespace(
        model_config=SimpleNamespace(hf_config=hf, hf_text_config=hf),
        parallel_config=SimpleNamespace(tensor_parallel_size=ranks),
    )


def ling(ranks: int = 1, **fields: Any) -> Any:
    return config(ranks, **(BAILING_SPECS["bailing"].published_config() | fields))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            config(4, linear_num_key_heads=6),
            r"tensor_parallel_size=4.*linear_num_key_heads=6.*Use one of \[1, 2, 3, 6\]",
        ),
        (config(16, linear_num_key_heads=8), r"tensor_parallel_size=16.*linear_num_key_heads=8"),
        (ling(4), r"tensor_parallel_size=4.*group_norm_size=2.*Use one of \[1, 2\]"),
        (
            ling(num_hidden_layers=5),
            "num_hidden_layers=5 with layer_group_size=2.*lightning.*whole groups",
        ),
        (ling(use_qkv_bias=True), "use_qkv_bias=True.*drops.*without biases"),
        (ling(use_bias=True), "use_bias=True.*drops"),
    ],
)
def test_what_would_end_in_a_worker_is_refused(given: Any, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        check_vllm_models(given)


def test_others_pass() -> None:
    check_vllm_models(config(3, linear_num_key_heads=6))
    check_vllm_models(config(7, architectures=None))
    check_vllm_models(ling(2))
    check_vllm_models(SimpleNamespace(model_config=None))


def test_heads_of_ling_keep_their_width(tmp_path: Path) -> None:
    """transformers' class, which is that of Ling 3, makes them as wide as the rotated channels."""
    from transformers import AutoConfig, BailingHybridConfig

    read_ling_configs()
    given = BAILING_SPECS["bailing"].published_config()
    file = tmp_path / "config.json"
    file.write_text(json.dumps(given))
    read = AutoConfig.from_pretrained(tmp_path)
    assert {name: getattr(read, name) for name in given if name != "torch_dtype"} == {
        name: value for name, value in given.items() if name != "torch_dtype"
    }
    del given["group_norm_size"]
    # The published one names code of its own, which is not asked for.
    given["auto_map"] = {"AutoConfig": "configuration_bailing_moe_v2_5.BailingMoeV2_5Config"}
    file.write_text(json.dumps(given))
    assert AutoConfig.from_pretrained(tmp_path).group_norm_size == 4
    given["architectures"] = ["BailingHybridForCausalLM"]
    file.write_text(json.dumps(given))
    other = AutoConfig.from_pretrained(tmp_path)
    assert type(other) is BailingHybridConfig
    assert other.head_dim == given["qk_rope_head_dim"]
