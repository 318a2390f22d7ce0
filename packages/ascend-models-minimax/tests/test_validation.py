"""Engine settings that MiniMax-M3 cannot serve are refused before anything is allocated."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from ascend_models_minimax.minimax_m3.config import MiniMaxM3Spec
from ascend_models_minimax.minimax_m3.validation import (
    check_draft,
    check_engine_config,
    set_block_size,
)
from ascend_models_minimax.testing import M3_SPECS
from ascend_ops_core import InvalidInputError
from vllm.config import CompilationMode

SPEC = MiniMaxM3Spec.from_config(M3_SPECS["m3"].published_config())


def engine(**changes: Any) -> Any:
    given = {
        "max_model_len": 4096,
        "quant": None,
        "pipeline": 1,
        "mode": CompilationMode.NONE,
        "cache": "auto",
        "tp": 1,
        "dp": 1,
        "dcp": 1,
        "ep": False,
        "eplb": False,
        "encoder_only": None,
        "additional": {},
        "block": None,
    } | changes
    quant, encoder_only, block = given["quant"], given["encoder_only"], given["block"]
    return SimpleNamespace(
        model_config=SimpleNamespace(
            max_model_len=given["max_model_len"],
            multimodal_config=None
            if encoder_only is None
            else SimpleNamespace(mm_encoder_only=encoder_only),
        ),
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
            block_size=block or 128,
            user_specified_block_size=block is not None,
        ),
    )


@pytest.mark.parametrize(
    "change",
    [{}, {"ep": True, "tp": 8}, {"tp": 16}, {"cache": "bfloat16"}, {"encoder_only": False}],
    ids=str,
)
def test_what_works_is_accepted(change: dict[str, Any]) -> None:
    check_engine_config(SPEC, engine(**change))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"max_model_len": 4097}, r"max_model_len=4097.*at most 4096"),
        ({"quant": "mxfp8"}, r"'mxfp8'.*own description.*Leave --quantization unset"),
        ({"pipeline": 2}, r"pipeline_parallel_size=2.*tensor_parallel_size"),
        ({"dcp": 2}, r"decode_context_parallel_size=2.*not the caches"),
        ({"eplb": True}, r"enable_eplb=True.*enable_expert_parallel alone"),
        ({"ep": True, "tp": 3, "dp": 3}, r"on 9 ranks.*num_local_experts=8.*at most 8"),
        ({"mode": CompilationMode.VLLM_COMPILE}, r"compilation mode.*enforce_eager=True"),
        ({"cache": "fp8"}, r"kv_cache_dtype='fp8'.*unset"),
        ({"encoder_only": True}, r"mm_encoder_only=True"),
        ({"additional": {"latent_cache_dtype": "int8"}}, r"latent_cache_dtype='int8'.*no latents"),
    ],
    ids=str,
)
def test_what_does_not_is_named(change: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        check_engine_config(SPEC, engine(**change))


def test_blocks_of_the_caches_are_those_of_the_selection() -> None:
    for block in (None, 16):
        config = engine(block=block)
        set_block_size(SPEC, config, "cpu")
        assert config.cache_config.block_size == 16
    with pytest.raises(InvalidInputError, match=r"block_size=32.*sparse_block_size=16"):
        set_block_size(SPEC, engine(block=32), "A3")
    with pytest.raises(InvalidInputError, match=r"block of 16 tokens.*A5.*multiple of 32"):
        set_block_size(SPEC, engine(), "A5")
    dense = replace(SPEC, selection=None, sparse_layers=(False,) * 5, num_mtp_layers=0)
    for device, block, expected in (("cpu", None, 128), ("cpu", 40, 40), ("A3", 48, 48)):
        config = engine(block=block)
        set_block_size(dense, config, device)
        assert config.cache_config.block_size == expected
    with pytest.raises(InvalidInputError, match=r"block of 40 tokens.*A3.*multiple of 16"):
        set_block_size(dense, engine(block=40), "A3")


def test_drafts_need_draft_layers() -> None:
    check_draft(SPEC)
    with pytest.raises(InvalidInputError, match="num_mtp_modules=0"):
        check_draft(replace(SPEC, num_mtp_layers=0))
