"""DeepSeek-V3.2 and GLM-5: configs, checkpoints and caches."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_attention.caches import CacheRole
from ascend_models_deepseek.architectures import ARCHITECTURES
from ascend_models_deepseek.deepseek_v3.latents import check_latents
from ascend_models_deepseek.deepseek_v3.sharding import Shard
from ascend_models_deepseek.deepseek_v3.weights import main_table, mtp_table
from ascend_models_deepseek.deepseek_v32.config import DeepseekV32Spec
from ascend_models_deepseek.glm_moe_dsa.architecture import GlmMoeDsaSpec
from ascend_models_deepseek.testing.oracle_v32 import V32Oracle
from ascend_models_deepseek.testing.tiny_v32 import V32_SPECS, TinyV32Spec, write_v32_checkpoint
from ascend_ops_core import InvalidInputError
from ascend_ops_core.checkpoint.headers import check_headers, read_headers
from ascend_ops_core.checkpoint.table import CheckpointError
from safetensors.torch import load_file, save_file

TINY = V32_SPECS["v32"]


def small(name: str) -> TinyV32Spec:
    """The named spec with as few layers as show everything."""
    return dataclasses.replace(V32_SPECS[name], num_hidden_layers=3, n_routed_experts=8)


@pytest.fixture(scope="module", params=("v32", "glm"))
def written(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[TinyV32Spec, Path]:
    spec = small(request.param)
    return spec, write_v32_checkpoint(spec, tmp_path_factory.mktemp(request.param))


def tables(spec: TinyV32Spec, size: int = 1, rank: int = 0) -> list[Any]:
    config = spec.published_config()
    architecture = ARCHITECTURES[config["model_type"]]
    read = architecture.spec.from_config(config)
    shard = Shard.of(read, size, rank, (0, read.vocab_size))
    return [make(architecture, read, shard) for make in (main_table, mtp_table)]


def test_the_checkpoint_of_transformers_fits(written: tuple[TinyV32Spec, Path]) -> None:
    spec, folder = written
    for table in tables(spec):
        check_headers(table, str(folder))
    stored = {name for name in read_headers(folder) if "indexer" in name}
    ruled = {name for table in tables(spec) for name in table.rules if "indexer" in name}
    assert stored == ruled
    full = sum(spec_type == "full" for spec_type in types_of(spec))
    assert len(stored) == 5 * (full + 1)


def types_of(spec: TinyV32Spec) -> tuple[str, ...]:
    config = spec.published_config()
    read = ARCHITECTURES[config["model_type"]].spec.from_config(config)
    assert isinstance(read, DeepseekV32Spec)
    return read.indexer_types


def test_selection_matters_to_the_oracle(written: tuple[TinyV32Spec, Path]) -> None:
    spec, folder = written
    oracle = V32Oracle(folder)
    prompt = oracle.clear_prompt(spec.index_topk + 30, 1)
    assert oracle.selection_effect(prompt) > 0.05
    assert oracle.selection_effect(prompt[: spec.index_topk]) == 0


def test_every_problem_of_the_indexer_s_tensors_is_listed(
    written: tuple[TinyV32Spec, Path], tmp_path: Path
) -> None:
    spec, folder = written
    tensors = load_file(folder / "model.safetensors")
    first = "model.layers.0.self_attn.indexer"
    del tensors[f"{first}.wk.weight"]
    tensors[f"{first}.weights_proj.weight"] = torch.zeros(3, 4)
    tensors[f"{first}.k_norm.scale"] = torch.zeros(3)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"3 problem\(s\)") as caught:
        check_headers(tables(spec)[0], str(tmp_path))
    for text in (
        f"missing {first}.wk.weight",
        f"shape of {first}.weights_proj.weight is [3, 4]",
        f"unexpected {first}.k_norm.scale",
    ):
        assert text in str(caught.value)


def test_an_indexer_in_a_layer_that_shares_is_refused(tmp_path: Path) -> None:
    spec = small("glm")
    assert types_of(spec) == ("full", "full", "shared")
    folder = write_v32_checkpoint(spec, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.2.self_attn.indexer.wk.weight"
    tensors[name] = tensors[name.replace("2", "1")].clone()
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"unexpected {name}"):
        check_headers(tables(spec)[0], str(folder))


@pytest.mark.parametrize(
    ("changed", "types"),
    [
        ({}, "FFFFF"),
        ({"index_topk_freq": 2}, "FFSFS"),
        ({"index_topk_freq": 3, "index_skip_topk_offset": 1}, "FSSFS"),
        ({"index_topk_pattern": "FFSSF"}, "FFSSF"),
        ({"indexer_types": ["full", "shared", "full", "full", "shared"]}, "FSFFS"),
    ],
)
def test_layers_with_an_indexer(changed: dict[str, Any], types: str) -> None:
    """As vLLM 0.27.1 and transformers read the same keys."""
    config = TINY.published_config() | {"num_hidden_layers": 5} | changed
    spec = DeepseekV32Spec.from_config(config)
    assert "".join(one[0].upper() for one in spec.indexer_types) == types
    from transformers import GlmMoeDsaConfig

    assert tuple(GlmMoeDsaConfig(**config).indexer_types) == spec.indexer_types
    # A draft's layer is behind the main ones and has its own.
    assert spec.has_indexer(5)


def test_the_rotation_of_indexers() -> None:
    config = TINY.published_config()
    assert not DeepseekV32Spec.from_config(config).indexer_rope_interleave
    assert GlmMoeDsaSpec.from_config(config).indexer_rope_interleave
    given = config | {"indexer_rope_interleave": True}
    assert DeepseekV32Spec.from_config(given).indexer_rope_interleave


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"index_topk": None}, "without 'index_topk'"),
        ({"index_topk": 0}, "index_topk=0"),
        ({"index_n_heads": 2.5}, "index_n_heads=2.5"),
        ({"q_lora_rank": None}, "without 'q_lora_rank'"),
        ({"index_head_dim": 8}, "index_head_dim=8"),
        ({"index_topk_pattern": "FS"}, r"indexer_types=\['full', 'shared'\]"),
        ({"index_topk_pattern": "SFF"}, "the first 'full'"),
        ({"indexer_types": ["full", "full", "none"]}, "each of 3 layers"),
    ],
)
def test_bad_configs_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        DeepseekV32Spec.from_config(TINY.published_config() | changed)


@pytest.mark.parametrize(
    ("device", "keep", "key", "scale"),
    [
        ("cpu", False, torch.bfloat16, None),
        ("A2", False, torch.int8, torch.float16),
        ("A3", False, torch.int8, torch.float16),
        ("A5", False, torch.float8_e4m3fn, torch.float32),
        ("A3", True, torch.bfloat16, None),
    ],
)
def test_caches_of_layers(device: str, keep: bool, key: torch.dtype, scale: Any) -> None:
    spec = V32_SPECS["glm"]
    architecture = ARCHITECTURES["glm_moe_dsa"]
    read = architecture.spec.from_config(spec.published_config())
    caches: Any = architecture.caches
    full, shared = (
        caches(read, layer, torch.bfloat16, device, None, keep_dtype=keep) for layer in (0, 2)
    )
    assert [kind.role for kind in full] == [CacheRole.LATENT, CacheRole.INDEX_KEY]
    assert [kind.role for kind in shared] == [CacheRole.LATENT]
    kind = full[1]
    assert (kind.width, kind.dtype) == (spec.index_head_dim, key)
    assert (None if kind.scales is None else kind.scales.dtype) == scale
    assert kind.block_tokens == full[0].block_tokens == 128


def test_latents_in_eight_bits_are_records_and_need_an_indexer() -> None:
    spec = V32_SPECS["v32_wide"]
    architecture = ARCHITECTURES["deepseek_v32"]
    read = architecture.spec.from_config(spec.published_config())
    caches: Any = architecture.caches
    kind = caches(read, 0, torch.bfloat16, "A3", None, int8_latents=True)[0]
    assert (kind.width, kind.dtype, kind.row_bytes) == (656, torch.int8, 656)
    config: Any = SimpleNamespace(additional_config={"latent_cache_dtype": "int8"})
    check_latents(config, sparse=True)
    with pytest.raises(InvalidInputError, match="latent_cache_dtype='int8'"):
        check_latents(config, sparse=False)
    narrow = ARCHITECTURES["glm_moe_dsa"].spec.from_config(V32_SPECS["glm"].published_config())
    with pytest.raises(InvalidInputError, match=r"a quantised row of 48 \+ 16"):
        caches(narrow, 0, torch.bfloat16, "A3", None, int8_latents=True)


def test_ranks_hold_whole_indexers() -> None:
    parts = [tables(TINY, 2, rank)[0].rules for rank in (0, 1)]
    for name, rule in parts[0].items():
        if "indexer" in name:
            assert rule == parts[1][name]
            assert not rule.source
