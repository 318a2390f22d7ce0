"""DeepSeek-V3's table of tensors: what transformers' model stores fits it, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ascend_models_deepseek.deepseek_v3.architecture import DEEPSEEK_V3
from ascend_models_deepseek.deepseek_v3.config import DeepseekV3Spec
from ascend_models_deepseek.deepseek_v3.sharding import Shard
from ascend_models_deepseek.deepseek_v3.weights import WeightTable, main_table, mtp_table
from ascend_models_deepseek.testing.tiny_v3 import V3_SPECS, write_v3_checkpoint
from ascend_ops_core.checkpoint.headers import check_headers, read_headers
from ascend_ops_core.checkpoint.table import CheckpointError
from safetensors.torch import load_file, save_file

Found = dict[str, tuple[tuple[int, ...], torch.dtype]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_v3_checkpoint(V3_SPECS["v3"], tmp_path_factory.mktemp("v3"))


def tables(name: str) -> tuple[WeightTable, WeightTable]:
    spec = DeepseekV3Spec.from_config(V3_SPECS[name].published_config())
    shard = Shard.of(spec, 1, 0, (0, spec.vocab_size))
    return main_table(DEEPSEEK_V3, spec, shard), mtp_table(DEEPSEEK_V3, spec, shard)


@pytest.mark.parametrize("name", sorted(V3_SPECS))
def test_transformers_checkpoint_fits(name: str, tmp_path: Path) -> None:
    found = read_headers(write_v3_checkpoint(V3_SPECS[name], tmp_path))
    main, draft = tables(name)
    assert main.problems(found) == []
    if V3_SPECS[name].mtp != "none":
        assert draft.problems(found) == []
    assert "model.layers.0.self_attn.kv_b_proj.weight" in main.rules


def test_a_draft_s_own_embedding_and_head_are_optional(folder: Path) -> None:
    found = read_headers(folder)
    _, draft = tables("v3")
    for name in ("embed_tokens.weight", "shared_head.head.weight"):
        found[f"model.layers.4.{name}"] = (512, 128), torch.bfloat16
    assert draft.problems(found) == []


def broken(found: Found, change: str) -> Found:
    name = "model.layers.1.self_attn.q_b_proj.weight"
    changed = dict(found)
    if change == "missing":
        del changed[name]
    elif change == "extra":
        changed["model.layers.1.self_attn.q_proj.weight"] = (4, 4), torch.float32
    elif change == "shape":
        changed[name] = (7, 48), torch.float32
    elif change == "dtype":
        changed[name] = found[name][0], torch.float8_e4m3fn
    elif change == "renamed":
        changed["model.layers.1.self_attn.q_b_prj.weight"] = changed.pop(name)
    return changed


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        ("missing", ["missing model.layers.1.self_attn.q_b_proj.weight [256, 48]"]),
        ("extra", ["unexpected model.layers.1.self_attn.q_proj.weight [4, 4]"]),
        ("shape", ["shape of model.layers.1.self_attn.q_b_proj.weight is [7, 48]"]),
        ("dtype", ["dtype of model.layers.1.self_attn.q_b_proj.weight is float8_e4m3fn"]),
        ("renamed", ["(closest: model.layers.1.self_attn.q_b_prj.weight)", "unexpected"]),
    ],
)
def test_each_problem_is_named(folder: Path, change: str, lines: list[str]) -> None:
    problems = tables("v3")[0].problems(broken(read_headers(folder), change))
    assert len(problems) == len(lines)
    for line in lines:
        assert any(line in problem for problem in problems), problems


def test_a_draft_without_its_projection_is_refused(folder: Path) -> None:
    found = read_headers(folder)
    del found["model.layers.4.eh_proj.weight"]
    main, draft = tables("v3")
    assert main.problems(found) == []
    assert draft.problems(found) == ["missing model.layers.4.eh_proj.weight [128, 256]"]


def test_all_problems_of_a_folder_come_at_once(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(7)
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"2 problem") as error:
        check_headers(tables("v3")[0], str(tmp_path))
    assert "missing lm_head.weight [512, 128]" in str(error.value)
    assert "shape of model.norm.weight is [7], expected [128]" in str(error.value)


def test_ranks_together_hold_the_whole_checkpoint(folder: Path) -> None:
    """Every value of every tensor is some rank's, and slices of one tensor lie apart."""
    spec = DeepseekV3Spec.from_config(V3_SPECS["v3"].published_config())
    tensors = load_file(folder / "model.safetensors")
    seen = {name: torch.zeros_like(tensor, dtype=torch.int32) for name, tensor in tensors.items()}
    for rank in range(2):
        shard = Shard.of(spec, 2, rank, (256 * rank, 256 * (rank + 1)))
        for name, rule in main_table(DEEPSEEK_V3, spec, shard).rules.items():
            if name in seen:
                part = seen[name] if rule.view is None else seen[name].view(rule.view)
                part[rule.source] += 1
    draft = "model.layers.4."
    for name, count in seen.items():
        if name.startswith(draft):
            assert not count.any()
            continue
        split = any(p in name for p in ("_b_proj", "o_proj", "mlp", "embed", "lm_head"))
        split &= ".gate." not in name
        assert count.unique().tolist() == [1 if split else 2], name
