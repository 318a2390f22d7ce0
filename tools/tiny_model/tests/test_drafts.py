"""Targets and drafts for speculative decoding: a few steps of training, and what is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tools.tiny_model import eagle3, medusa
from tools.tiny_model.dense import DenseRecipe, load_target, new_target, train_target

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
FEW = DenseRecipe(steps=3, short=(1, 32), long=(1, 48), scored=1)


def test_a_draft_reads_when_trained_what_it_reads_when_it_drafts() -> None:
    """Step by step from a text that ends equals the unrolled rows of a text that goes on."""
    torch.manual_seed(0)
    target = new_target("llama").eval()
    draft = eagle3.Eagle3(target.config, target.get_input_embeddings(), torch.arange(640))
    ids = torch.randint(0, 1024, (2, 20))
    aux, _ = eagle3.streams_and_choices(target, ids)
    whole = draft(ids, aux, 3)
    part = draft(ids[:, :12], aux[:, :12], 3)
    for step, (long, short) in enumerate(zip(whole, part, strict=True)):
        assert short.shape == (2, 11 - step, 640)
        torch.testing.assert_close(long[:, : 11 - step], short, rtol=1e-4, atol=1e-4)
    # A later step depends on the tokens that were drafted before, and on no later stream.
    changed = aux.clone()
    changed[:, 5:] = 0
    torch.testing.assert_close(draft(ids, changed, 3)[2][:, :5], whole[2][:, :5])


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_targets_and_drafts_are_trained_and_written(kind: str, tmp_path: Path) -> None:
    target, draft, heads = (tmp_path / name for name in ("target", "draft", "heads"))
    train_target(kind, FEW, CHECKPOINTS / "llama", target)
    assert load_target(target).config.model_type == kind
    assert (target / "tokenizer.json").exists()
    assert (target / "training.json").exists()
    eagle3.train_eagle3(target, FEW, draft)
    tensors = load_file(draft / "model.safetensors")
    assert tensors["fc.weight"].shape == (128, 3 * 128)
    assert tensors["midlayer.self_attn.q_proj.weight"].shape == (128, 256)
    ids = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    assert ids.unique().equal(ids)
    assert ids.min() >= 0
    assert ids.max() < 1024
    medusa.train_medusa(target, FEW, heads)
    assert load_file(heads / "model.safetensors")["lm_heads.3.weight"].shape == (1024, 128)


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'gpt'.*llama, qwen3"):
        new_target("gpt")
