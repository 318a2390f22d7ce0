"""A block draft's checkpoint: what is filled, what is refused, and what a rotation changes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_specdec.qwen3_blocks.weights import load_draft
from ascend_specdec.vllm.target_files import TargetFiles
from safetensors.torch import save_file
from torch import nn

WIDTH, VOCABULARY = 4, 6


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape), requires_grad=False)


class Stacked(nn.Module):
    """Keys above values, filled part by part as vLLM's layers are."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = parameter(2 * WIDTH, WIDTH)

        def load(into: torch.Tensor, tensor: torch.Tensor, shard: str) -> None:
            assert tensor.shape == (WIDTH, WIDTH)
            start = WIDTH * "kv".index(shard)
            into.data[start : start + WIDTH] = tensor

        self.weight.weight_loader = load  # type: ignore[attr-defined]


class Draft(nn.Module):
    """The parameters that a loader sees of a DSpark draft."""

    def __init__(self, folder: Path, draft_vocab_size: int = VOCABULARY) -> None:
        super().__init__()
        self.spec: Any = SimpleNamespace(
            vocab_size=VOCABULARY,
            draft_vocab_size=draft_vocab_size,
            hidden_size=WIDTH,
            markov_rank=2,
        )
        self.target_files = TargetFiles(str(folder))
        self.draft_model_config: Any = SimpleNamespace(model=str(folder), revision=None)
        self.draft_to_target: torch.Tensor | None = None
        self.confidence_head: nn.Module | None = None
        self.model = nn.Module()
        self.model.mask_embedding = None
        self.model.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.model.fc = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.model.norm = nn.Module()
        self.model.norm.weight = parameter(WIDTH)
        self.model.attention = nn.Module()
        self.model.attention.kv_proj = Stacked()
        self.lm_head = nn.Linear(WIDTH, draft_vocab_size, bias=False)
        self.markov_head = nn.Module()
        self.markov_head.markov_w1 = parameter(VOCABULARY, 2)


def checkpoint(**changes: torch.Tensor | None) -> list[tuple[str, torch.Tensor]]:
    torch.manual_seed(0)
    given: dict[str, torch.Tensor | None] = {
        "fc.weight": torch.randn(WIDTH, 2 * WIDTH),
        "norm.weight": torch.randn(WIDTH),
        "attention.k_proj.weight": torch.randn(WIDTH, WIDTH),
        "attention.v_proj.weight": torch.randn(WIDTH, WIDTH),
        "markov_head.markov_w1.weight": torch.randn(VOCABULARY, 2),
        "t2d": torch.ones(VOCABULARY, dtype=torch.bool),
    } | {name.replace("__", "."): tensor for name, tensor in changes.items()}
    return [(name, tensor) for name, tensor in given.items() if tensor is not None]


def test_every_parameter_is_filled(tmp_path: Path) -> None:
    draft, given = Draft(tmp_path), checkpoint()
    load_draft(draft, given)
    tensors = dict(given)
    assert torch.equal(draft.model.fc.weight, tensors["fc.weight"])
    both = torch.cat([tensors[f"attention.{one}_proj.weight"] for one in "kv"])
    assert torch.equal(draft.model.attention.kv_proj.weight, both)
    assert torch.equal(draft.markov_head.markov_w1, tensors["markov_head.markov_w1.weight"])
    assert not draft.has_own_embed_tokens
    assert not draft.has_own_lm_head
    assert draft.confidence_head is None


def test_own_embedding_head_confidence_and_mask_row(tmp_path: Path) -> None:
    torch.save({"embedding": torch.arange(4.0)}, tmp_path / "mask_embedding.pt")
    draft = Draft(tmp_path, draft_vocab_size=3)
    filled = load_draft(
        draft,
        checkpoint(
            embed_tokens__weight=torch.ones(VOCABULARY, WIDTH),
            lm_head__weight=torch.ones(3, WIDTH),
            d2t=torch.tensor([1, 1, 3]),
            confidence_head__proj__weight=torch.ones(1, WIDTH + 2),
            confidence_head__proj__bias=torch.ones(1),
        ),
    )
    assert draft.has_own_embed_tokens
    assert draft.has_own_lm_head
    assert draft.draft_to_target is not None
    assert draft.draft_to_target.tolist() == [1, 2, 5]
    assert draft.confidence_head is not None
    assert draft.model.mask_embedding.tolist() == [0, 1, 2, 3]
    assert filled == dict(draft.named_parameters()).keys(), "vLLM asks for every one"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"other__weight": torch.ones(1)}, "1 unknown and 0 missing.*other.weight"),
        ({"norm__weight": None}, "missing: model.norm.weight"),
        ({"attention__v_proj__weight": None}, r"kv_proj.weight\[v\]"),
        ({"fc__weight": torch.ones(WIDTH, WIDTH)}, "fc.weight of shape"),
        ({"attention__k_proj__weight": torch.ones(1, WIDTH)}, "k_proj.weight of shape"),
        ({"d2t": torch.full((VOCABULARY,), 9)}, "d2t of shape"),
        ({"confidence_head__proj__weight": torch.ones(1, 9)}, "confidence_head"),
        ({"confidence_head__proj__bias": torch.ones(1)}, "bias alone"),
    ],
)
def test_another_checkpoint_is_refused(
    tmp_path: Path, changes: dict[str, torch.Tensor | None], named: str
) -> None:
    with pytest.raises(InvalidInputError, match=named):
        load_draft(Draft(tmp_path), checkpoint(**changes))


def test_a_smaller_head_needs_its_own_map(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="draft_vocab_size=3 of 6"):
        load_draft(Draft(tmp_path, 3), checkpoint(lm_head__weight=torch.ones(3, WIDTH)))


def test_a_rotated_target_changes_what_reads_it_and_nothing_else(tmp_path: Path) -> None:
    torch.manual_seed(1)
    q = torch.linalg.qr(torch.randn(WIDTH, WIDTH))[0].contiguous()
    save_file({"global_rotation": q}, tmp_path / "rotation.safetensors")
    named = {"quarot": {"rotation_map": {"global_rotation": "rotation.safetensors"}}}
    (tmp_path / "quant_model_description.json").write_text(json.dumps({"optional": named}))
    with pytest.raises(InvalidInputError, match="rotated target"):
        load_draft(Draft(tmp_path), checkpoint())
    own = {
        "embed_tokens__weight": torch.randn(VOCABULARY, WIDTH),
        "lm_head__weight": torch.randn(VOCABULARY, WIDTH),
    }
    draft, given = Draft(tmp_path), checkpoint(**own)
    load_draft(draft, given)
    tensors, states = dict(given), torch.randn(3, 2, WIDTH)
    torch.testing.assert_close(
        draft.model.fc((states @ q).flatten(1)), states.flatten(1) @ tensors["fc.weight"].T
    )
    assert torch.equal(draft.lm_head.weight, tensors["lm_head.weight"])
    assert torch.equal(draft.model.embed_tokens.weight, tensors["embed_tokens.weight"])


def test_half_a_stream_of_a_rotated_target_is_refused(tmp_path: Path) -> None:
    q = torch.eye(WIDTH)
    save_file({"global_rotation": q}, tmp_path / "rotation.safetensors")
    named = {"quarot": {"rotation_map": {"global_rotation": "rotation.safetensors"}}}
    (tmp_path / "quant_model_description.json").write_text(json.dumps({"optional": named}))
    with pytest.raises(InvalidInputError, match="whole streams of 4"):
        load_draft(Draft(tmp_path), checkpoint(fc__weight=torch.ones(WIDTH, 6)))
