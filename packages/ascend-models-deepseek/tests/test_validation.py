"""Engine settings that DeepSeek-V4 cannot serve are refused before anything is allocated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_models_deepseek.deepseek_v4.validation import check_engine_config
from ascend_models_deepseek.testing import SPECS
from ascend_ops_core import InvalidInputError
from vllm.config import CompilationMode


def engine(**changes: Any) -> Any:
    given = {
        "max_model_len": 4096,
        "quant": None,
        "pipeline": 1,
        "mode": CompilationMode.NONE,
        "cache": "auto",
        "tp": 1,
        "dp": 1,
        "ep": False,
        "eplb": False,
        "elastic": False,
        "redundant": 0,
    } | changes
    quant = given["quant"]
    return SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=given["max_model_len"]),
        quant_config=quant and SimpleNamespace(get_name=lambda: quant),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=given["pipeline"],
            tensor_parallel_size=given["tp"],
            data_parallel_size=given["dp"],
            enable_expert_parallel=given["ep"],
            enable_eplb=given["eplb"],
            enable_elastic_ep=given["elastic"],
            eplb_config=SimpleNamespace(num_redundant_experts=given["redundant"]),
        ),
        compilation_config=SimpleNamespace(mode=given["mode"]),
        cache_config=SimpleNamespace(cache_dtype=given["cache"]),
    )


@pytest.fixture(scope="module")
def spec() -> DeepseekV4Spec:
    return DeepseekV4Spec.from_config(SPECS["mixed"].original_config())


@pytest.mark.parametrize("cache", ["auto", "bfloat16", "float32", "float16"])
def test_what_works_is_accepted(spec: DeepseekV4Spec, cache: str) -> None:
    check_engine_config(spec, engine(cache=cache))
    check_engine_config(spec, engine(cache=cache, quant="ascend"))


@pytest.mark.parametrize("ranks", [{"tp": 8}, {"tp": 2, "dp": 4}, {"tp": 5}, {}], ids=str)
def test_every_rank_has_an_expert(spec: DeepseekV4Spec, ranks: dict[str, int]) -> None:
    check_engine_config(spec, engine(ep=True, **ranks))


@pytest.mark.parametrize("redundant", [0, 1, 8])
def test_experts_may_be_balanced(spec: DeepseekV4Spec, redundant: int) -> None:
    check_engine_config(spec, engine(ep=True, eplb=True, tp=2, redundant=redundant))


def test_without_expert_parallelism_ranks_may_outnumber_experts(spec: DeepseekV4Spec) -> None:
    check_engine_config(spec, engine(tp=16, dp=2))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"max_model_len": 4097},
            r"max_model_len=4097.*max_position_embeddings=4096.*at most 4096",
        ),
        ({"quant": "fp8"}, r"'fp8'.*own description.*--quantization unset"),
        ({"pipeline": 2}, r"pipeline_parallel_size=2.*tensor_parallel_size"),
        ({"mode": CompilationMode.VLLM_COMPILE}, r"compilation mode.*enforce_eager=True"),
        ({"cache": "fp8"}, r"kv_cache_dtype='fp8'.*unset"),
        (
            {"eplb": True, "elastic": True},
            r"enable_elastic_ep=True.*ranks of a running engine stay.*enable_eplb alone works",
        ),
        ({"eplb": True, "ep": True, "redundant": 9, "tp": 2}, r"9 redundant.*2 ranks.*at most 8"),
        (
            {"ep": True, "tp": 3, "dp": 3},
            r"on 9 ranks.*=3 x data_parallel_size=3.*n_routed_experts=8.*at most 8 ranks",
        ),
    ],
    ids=[
        "length",
        "quantized",
        "pipeline",
        "compiled",
        "cache",
        "elastic",
        "redundant",
        "few experts",
    ],
)
def test_what_does_not_is_named(spec: DeepseekV4Spec, change: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        check_engine_config(spec, engine(**change))
