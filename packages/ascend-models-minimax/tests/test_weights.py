"""Which tensors a checkpoint has, and what every rank takes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_attention.layers.qkv_indexer import QKVIndexerShape, QKVParallelLinearWithIndexer
from ascend_models_minimax.minimax_m3.config import MiniMaxM3Spec
from ascend_models_minimax.minimax_m3.sharding import Shard, qkv_shape
from ascend_models_minimax.minimax_m3.vision.config import VisionSpec
from ascend_models_minimax.minimax_m3.vision.weights import whole_table
from ascend_models_minimax.minimax_m3.weights import main_table, mtp_table, text_root
from ascend_models_minimax.testing import M3_SPECS, write_m3_checkpoint
from ascend_ops_core import InvalidInputError
from ascend_ops_core.checkpoint.headers import check_headers, read_headers
from ascend_ops_core.checkpoint.table import CheckpointError
from safetensors.torch import load_file, save_file

NAMES = ("m3", "m3_odd")
LAYER = "language_model.model.layers.2"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: write_m3_checkpoint(M3_SPECS[name], tmp_path_factory.mktemp(name)) for name in NAMES
    }


def read(name: str) -> MiniMaxM3Spec:
    return MiniMaxM3Spec.from_config(M3_SPECS[name].published_config())


def shard(name: str, size: int = 1, rank: int = 0) -> Shard:
    spec = read(name)
    return Shard.of(spec, size, rank, (0, spec.vocab_size))


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_of_transformers_has_a_place(folders: dict[str, Path], name: str) -> None:
    text = main_table(read(name), shard(name), "language_model.")
    vision = VisionSpec.from_config(M3_SPECS[name].published_config())
    whole, drafts = whole_table(text, vision), mtp_table(read(name), shard(name), "language_model.")
    for table in (text, whole, drafts):
        check_headers(table, str(folders[name]))
    stored = set(read_headers(folders[name]))
    assert set(whole.rules) | set(drafts.rules) == stored
    assert not set(whole.rules) & set(drafts.rules)


def test_where_a_text_model_s_names_begin() -> None:
    config = M3_SPECS["m3"].published_config()
    assert text_root(type("Config", (), config)) == "language_model."
    assert text_root(type("Config", (), config["text_config"])) == ""
    table = main_table(read("m3"), shard("m3"))
    assert "model.layers.2.self_attn.index_q_proj.weight" in table.rules


def test_every_problem_is_listed_at_once(folders: dict[str, Path], tmp_path: Path) -> None:
    tensors = load_file(folders["m3"] / "model.safetensors")
    del tensors[f"{LAYER}.self_attn.index_k_proj.weight"]
    tensors[f"{LAYER}.self_attn.index_k_proj.weigth"] = torch.zeros(3)
    tensors[f"{LAYER}.block_sparse_moe.e_score_correction_bias"] = torch.zeros(7)
    tensors[f"{LAYER}.block_sparse_moe.experts.8.w1.weight"] = torch.zeros(3)
    tensors["vision_tower.vision_model.post_layernorm.weight"] = torch.zeros(64)
    save_file(tensors, tmp_path / "model.safetensors")
    text = main_table(read("m3"), shard("m3"), "language_model.")
    table = whole_table(text, VisionSpec.from_config(M3_SPECS["m3"].published_config()))
    with pytest.raises(CheckpointError, match=r"5 problem\(s\)") as caught:
        check_headers(table, str(tmp_path))
    for line in (
        f"missing {LAYER}.self_attn.index_k_proj.weight [32, 96] (closest: {LAYER}.self_attn."
        "index_k_proj.weigth)",
        f"unexpected {LAYER}.self_attn.index_k_proj.weigth",
        f"shape of {LAYER}.block_sparse_moe.e_score_correction_bias is [7], expected [8]",
        f"unexpected {LAYER}.block_sparse_moe.experts.8.w1.weight",
        "unexpected vision_tower.vision_model.post_layernorm.weight [64]",
    ):
        assert line in str(caught.value)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"),
    [(8, 2, 1), (8, 2, 2), (8, 2, 4), (8, 2, 8), (9, 3, 3), (6, 6, 2)],
)
def test_ranks_hold_whole_heads(heads: int, kv_heads: int, size: int) -> None:
    """By name: the query heads of a rank and the key-value head that serves each of them."""
    total = QKVIndexerShape(4, heads, kv_heads, 6, 3)
    given = {name: torch.randn(part.total, 4) for name, part in total.parts.items()}
    query_heads = given["q"].view(heads, 6, 4)
    held = []
    for rank in range(size):
        shape = QKVIndexerShape(4, heads, kv_heads, 6, 3, size, rank)
        layer = QKVParallelLinearWithIndexer(shape, torch.float32)
        for name, tensor in given.items():
            layer.weight_loader(tensor, name)
        x = torch.randn(5, 4)
        out = layer(x)
        assert out.query.shape == (5, heads // size, 6)
        assert out.index_query is not None
        assert out.index_key is not None
        for i in range(shape.num_heads):
            head = rank * shape.num_heads + i
            torch.testing.assert_close(out.query[:, i], x @ query_heads[head].T)
            serving = head // (heads // kv_heads)
            local = i // (shape.num_heads // shape.num_kv_heads)
            for name, width, got in (
                ("k", 6, out.key),
                ("v", 6, out.value),
                ("index_q", 3, out.index_query),
            ):
                expected = x @ given[name].view(kv_heads, width, 4)[serving].T
                torch.testing.assert_close(got[:, local], expected)
            held.append(head)
        torch.testing.assert_close(out.index_key[:, 0], x @ given["index_k"].T)
    assert held == list(range(heads))


@pytest.mark.parametrize(("size", "kv_heads"), [(3, 2), (5, 4), (16, 2), (4, 6)])
def test_an_indivisible_layout_is_refused_by_name(size: int, kv_heads: int) -> None:
    with pytest.raises(InvalidInputError, match=f"tensor_parallel_size={size}.*Use one of"):
        QKVIndexerShape(4, 12 if kv_heads == 6 else 8, kv_heads, 6, 3, size)


def test_bad_shards_are_refused() -> None:
    layer = QKVParallelLinearWithIndexer(QKVIndexerShape(4, 8, 2, 6), torch.float32)
    layer.weight.data.fill_(7)
    with pytest.raises(InvalidInputError, match=r"shard id 'index_q'.*q, k, v"):
        layer.weight_loader(torch.zeros(12, 4), "index_q")
    with pytest.raises(InvalidInputError, match=r"k of shape \[6, 4\].*\[12, 4\]"):
        layer.weight_loader(torch.zeros(6, 4), "k")
    assert bool((layer.weight == 7).all())
    with pytest.raises(InvalidInputError, match="rank 2"):
        QKVIndexerShape(4, 8, 2, 6, None, 2, 2)
    with pytest.raises(InvalidInputError, match="8 query heads for 3"):
        QKVIndexerShape(4, 8, 3, 6)


def test_channels_that_ranks_cannot_share_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="intermediate_size=32"):
        Shard.of(
            read("m3").__class__.from_config(
                M3_SPECS["m3"].text_config()
                | {
                    "num_attention_heads": 10,
                    "num_key_value_heads": 5,
                    "sparse_attention_config": None,
                    "num_mtp_modules": 0,
                }
            ),
            5,
            0,
            (0, 512),
        )


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_cover_every_row_and_column(size: int) -> None:
    """Every element of every tensor is on some rank, and twice only where it is meant."""
    parts = [main_table(read("m3"), shard("m3", size, rank)).rules for rank in range(size)]
    twice = ("norm", "gate.weight", "e_score", "embed", "lm_head", "index_k_proj")
    replicated = ("k_proj", "v_proj", "index_q_proj") if size > 2 else ()
    for name, rule in parts[0].items():
        if any(part in name for part in twice):
            continue
        count = torch.zeros(rule.shape)
        for rules in parts:
            count[rules[name].source] += 1
        copies = size // 2 if name.split(".")[-2] in replicated else 1
        assert bool((count == copies).all()), name


def test_the_projection_of_a_layer_without_indexer() -> None:
    spec: Any = read("m3")
    assert set(qkv_shape(spec, 0, 1, 0).parts) == {"q", "k", "v"}
    assert set(qkv_shape(spec, 1, 1, 0).parts) == {"q", "k", "v", "index_q", "index_k"}
    assert set(qkv_shape(spec, 5, 1, 0).parts) == {"q", "k", "v", "index_q", "index_k"}
