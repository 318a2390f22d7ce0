"""Engine settings that Kimi cannot serve are refused before anything is allocated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ascend_models_kimi.kimi_linear.config import KimiLinearSpec
from ascend_models_kimi.kimi_linear.validation import check_engine_config
from ascend_models_kimi.testing import KIMI_LINEAR_SPECS
from ascend_ops_core import InvalidInputError
from vllm.config import CompilationMode

SPEC = KimiLinearSpec.from_config(KIMI_LINEAR_SPECS["kimi_linear"].published_config())


def engine(**changes: Any) -> Any:
    given = {
        "max_model_len": 4096,
        "quant": None,
        "pipeline": 1,
        "mode": CompilationMode.NONE,
        "cache": "auto",
        "conv": "auto",
        "ssm": "auto",
        "states": "none",
        "tp": 1,
        "dp": 1,
        "dcp": 1,
        "ep": False,
        "eplb": False,
        "additional": {},
    } | changes
    quant = given["quant"]
    return SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=given["max_model_len"]),
        quant_config=quant and SimpleNamespace(get_name=lambda: quant),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=given["pipeline"],
            tensor_parallel_size=given["tp"],
            data_parallel_size=given["dp"],
            decode_context_parallel_size=given["dcp"],
            enable_expert_parallel=given["ep"],
            enable_eplb=given["eplb"],
        ),
        compilation_config=SimpleNamespace(mode=given["mode"]),
        additional_config=given["additional"],
        cache_config=SimpleNamespace(
            cache_dtype=given["cache"],
            mamba_cache_dtype=given["conv"],
            mamba_ssm_cache_dtype=given["ssm"],
            mamba_cache_mode=given["states"],
        ),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tp": 4, "dp": 2, "ep": True},
        {"ssm": "float32"},
        {"states": "align"},
        {"quant": "ascend"},
    ],
)
def test_what_is_served(changes: dict[str, Any]) -> None:
    check_engine_config(SPEC, engine(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_model_len": 4097}, "max_model_len=4097"),
        ({"quant": "fp8"}, "quantization 'fp8'"),
        ({"pipeline": 2}, "pipeline_parallel_size=2"),
        ({"dcp": 2}, "decode_context_parallel_size=2"),
        ({"eplb": True}, "enable_eplb=True"),
        ({"tp": 8, "dp": 2, "ep": True}, "on 16 ranks"),
        ({"mode": CompilationMode.VLLM_COMPILE}, "compilation mode"),
        ({"cache": "fp8"}, "kv_cache_dtype='fp8'"),
        ({"conv": "float16"}, "mamba_cache_dtype='float16'"),
        ({"ssm": "float16"}, "mamba_ssm_cache_dtype='float16'"),
        ({"states": "all"}, "mamba_cache_mode='all'"),
        ({"additional": {"latent_cache_dtype": "int8"}}, "latent_cache_dtype='int8'"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        check_engine_config(SPEC, engine(**changes))
