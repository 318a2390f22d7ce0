"""What of vLLM's own models is refused in the user's process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ascend_ops_core import InvalidInputError
from ascend_vllm_plugin.vllm_models import check_vllm_models


def config(ranks: int, **fields: Any) -> Any:
    hf = SimpleNamespace(**fields)
    return SimpleNamespace(
        model_config=SimpleNamespace(hf_config=hf, hf_text_config=hf),
        parallel_config=SimpleNamespace(tensor_parallel_size=ranks),
    )


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            config(4, linear_num_key_heads=6),
            r"tensor_parallel_size=4.*linear_num_key_heads=6.*Use one of \[1, 2, 3, 6\]",
        ),
        (config(16, linear_num_key_heads=8), r"tensor_parallel_size=16.*linear_num_key_heads=8"),
        (
            config(1, architectures=["BailingMoeV2_5ForCausalLM"]),
            "BailingMoeV2_5ForCausalLM.*latent attention.*another model",
        ),
    ],
)
def test_what_would_end_in_a_worker_is_refused(given: Any, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        check_vllm_models(given)


def test_others_pass() -> None:
    check_vllm_models(config(3, linear_num_key_heads=6))
    check_vllm_models(config(7, architectures=None))
    check_vllm_models(SimpleNamespace(model_config=None))
