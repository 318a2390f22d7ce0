"""DSpark's config and checkpoint: what is read, what is refused, and every problem at once."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_models_deepseek.deepseek_v4.dspark_config import DSparkSpec
from ascend_models_deepseek.deepseek_v4.dspark_weights import dspark_table
from ascend_models_deepseek.deepseek_v4.sharding import Shard
from ascend_models_deepseek.deepseek_v4.weights import main_table
from ascend_models_deepseek.testing import SPECS
from ascend_models_deepseek.testing.dspark import (
    DSparkShape,
    load_dspark,
    random_dspark,
    write_dspark,
)
from ascend_ops_core.checkpoint.table import WeightTable
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.layers.block_drafts import TRAINED_BLOCK
from ascend_ops_core.vllm.block_drafts import check_block_target

SHAPE = DSparkShape((0, 2, 5), layers=2, markov_rank=8)


def config(**changes: Any) -> dict[str, Any]:
    return SPECS["mixed"].original_config() | SHAPE.to_json() | changes


def test_every_key_is_read() -> None:
    spec = DSparkSpec.from_config(config())
    assert spec.target_layers == (0, 2, 5)
    assert spec.layers == range(6, 8)
    assert spec.main.compress_ratio(7) == 0
    assert (spec.queries(4), spec.mask_token, spec.markov_rank) == (4, 2, 8)
    assert DSparkSpec.from_config(config(sample_from_anchor=False)).queries(4) == 5
    counted = {name: value for name, value in config().items() if name != "n_mtp_layers"}
    assert DSparkSpec.from_config(counted).main.num_mtp_layers == 3
    assert DSparkSpec.from_config(counted | {"dspark_num_mtp_layers": 1}).layers == range(6, 7)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"dspark_target_layer_ids": None}, "without 'dspark_target_layer_ids'"),
        ({"dspark_target_layer_ids": [2, 0]}, r"dspark_target_layer_ids=\[2, 0\]"),
        ({"dspark_target_layer_ids": ["a", 0]}, "dspark_target_layer_ids="),
        ({"dspark_noise_token_id": None}, "without 'dspark_noise_token_id'"),
        ({"dspark_noise_token_id": 512}, "dspark_noise_token_id=512"),
        ({"dspark_markov_rank": 0}, "dspark_markov_rank=0"),
        ({"dspark_block_size": "7"}, "dspark_block_size='7'"),
        ({"dspark_block_size": 0}, "dspark_block_size=0"),
        ({"n_mtp_layers": 0}, "n_mtp_layers=0"),
        ({"draft_vocab_size": 100}, "draft_vocab_size=100"),
        ({"compress_ratios": [0, 128, 4, 128, 4, 0, 4]}, "of the MTP layers"),
    ],
)
def test_bad_configs_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        DSparkSpec.from_config(config(**changes))


def test_fewer_drafts_are_the_first_of_a_whole_block() -> None:
    moved = config(dspark_block_size=None) | {TRAINED_BLOCK: 4}
    for given in (config(), moved):
        spec = DSparkSpec.from_config(given)
        assert [spec.queries(drafts) for drafts in (1, 4, 7)] == [4, 4, 7]
        assert spec.rows_read(1) == 1
    spec = DSparkSpec.from_config(config(sample_from_anchor=False))
    assert [spec.queries(drafts) for drafts in (1, 4, 7)] == [5, 5, 8]
    assert spec.rows_read(1) == 2
    assert DSparkSpec.from_config(config(dspark_block_size=None)).queries(1) == 1


def engine(layers: int = 6, hidden: int = 128, stages: int = 1) -> Any:
    return SimpleNamespace(
        model_config=SimpleNamespace(
            hf_text_config=SimpleNamespace(num_hidden_layers=layers),
            get_hidden_size=lambda: hidden,
            get_vocab_size=lambda: 512,
            uses_mrope=False,
        ),
        parallel_config=SimpleNamespace(pipeline_parallel_size=stages),
    )


def test_a_pair_is_accepted() -> None:
    check_block_target(DSparkSpec.from_config(config()), engine())


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"layers": 5}, r"target_layer_ids=\[0, 2, 5\]"),
        ({"hidden": 64}, "width 128"),
        ({"stages": 2}, "pipeline_parallel_size=2"),
    ],
)
def test_what_does_not_belong_together_is_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        check_block_target(DSparkSpec.from_config(config()), engine(**settings))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random draft beside its target's config."""
    from transformers import DeepseekV4Config

    target = tmp_path_factory.mktemp("target")
    (target / "config.json").write_text(json.dumps(SPECS["mixed"].original_config()))
    hf_config = DeepseekV4Config.from_pretrained(target)
    draft = random_dspark(hf_config, SHAPE, seed=1)
    out = write_dspark(draft, target, tmp_path_factory.mktemp("draft"))
    again = load_dspark(hf_config, out)
    for (name, one), (_, other) in zip(
        draft.state_dict().items(), again.state_dict().items(), strict=True
    ):
        assert torch.equal(one, other), name
    return out


def table() -> WeightTable:
    spec = DSparkSpec.from_config(config())
    return dspark_table(spec, Shard.of(spec.main, 1, 0, (0, 512)))


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def found(given: dict[str, torch.Tensor]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    return {name: (tuple(one.shape), one.dtype) for name, one in given.items()}


def test_a_draft_alone_and_one_in_the_targets_checkpoint(folder: Path) -> None:
    given = found(tensors(folder))
    assert table().problems(given) == []
    target = dict.fromkeys(("layers.0.attn.wq_a.weight", "embed.weight"), ((9,), torch.int64))
    assert table().problems(given | target) == [], "tensors of the target are not looked at"
    spec = DSparkSpec.from_config(config()).main
    names = main_table(spec, Shard.of(spec, 1, 0, (0, 512))).problems(given)
    assert not any("mtp." in line for line in names), "nor those of the draft by the target"


def test_a_confidence_head_an_embedding_and_a_head_are_optional(folder: Path) -> None:
    given = found(tensors(folder))
    del given["mtp.1.confidence_head.proj.weight"]
    assert table().problems(given) == []
    own = ((512, 128), torch.float32)
    assert table().problems(given | {"mtp.0.embed.weight": own, "mtp.1.head.weight": own}) == []


def test_every_problem_is_reported_at_once(folder: Path) -> None:
    given = tensors(folder)
    del given["mtp.0.main_norm.weight"], given["mtp.1.attn.wkv.weight"]
    given["mtp.0.norm.weight"] = given["mtp.1.norm.weight"]
    given["mtp.0.main_proj.weight"] = given["mtp.0.main_proj.weight"][:, 1:]
    given["mtp.1.markov_head.markov_w2.weight"] = torch.zeros(512, 9)
    lines = table().problems(found(given))
    assert [line.split(" (")[0] for line in lines] == [
        "missing mtp.0.main_norm.weight [128]",
        "missing mtp.1.attn.wkv.weight [64, 128]",
        "shape of mtp.0.main_proj.weight is [128, 383], expected [128, 384]",
        "unexpected mtp.0.norm.weight [128]",
        "shape of mtp.1.markov_head.markov_w2.weight is [512, 9], expected [512, 8]",
    ]
