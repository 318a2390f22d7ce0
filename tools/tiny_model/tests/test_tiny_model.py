"""The demo model's maths, names, stories and tokenizer, on tiny random models."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tools.tiny_model import checkpoint, hyper
from tools.tiny_model.attention import index_divergence
from tools.tiny_model.check import largest_difference, load_transformers, selection_effect
from tools.tiny_model.config import TinyConfig
from tools.tiny_model.data import (
    CHAT_TEMPLATE,
    batches,
    documents,
    encode,
    save_tokenizer,
    train_tokenizer,
)
from tools.tiny_model.model import TinyDeepseekV4
from tools.tiny_model.stories import stories
from tools.tiny_model.train import Recipe, losses, train

CFG = TinyConfig(
    vocab_size=96,
    hidden_size=32,
    head_dim=16,
    qk_rope_head_dim=8,
    q_lora_rank=16,
    o_lora_rank=8,
    sliding_window=16,
    index_head_dim=16,
    index_topk=4,
    n_routed_experts=4,
    moe_intermediate_size=16,
)


def random_model(cfg: TinyConfig = CFG, seed: int = 0) -> TinyDeepseekV4:
    """A model in which no gain, bias, sink or table sits at its neutral start value."""
    torch.manual_seed(seed)
    model = TinyDeepseekV4(cfg)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 1 or name.endswith("ape"):
                p.add_(0.3 * torch.randn_like(p))
        for moe in model.moes():
            if moe.gate.hashed:
                order = torch.rand(cfg.vocab_size, cfg.n_routed_experts).argsort(-1)
                moe.gate.tid2eid.copy_(order[:, : cfg.num_experts_per_tok])
            else:
                moe.gate.bias.copy_(0.1 * torch.randn_like(moe.gate.bias))
    return model.eval()


@pytest.mark.parametrize("seed", [0, 1])
def test_logits_equal_transformers(tmp_path: Path, seed: int) -> None:
    checkpoint.save(random_model(seed=seed), tmp_path)
    ours, theirs = checkpoint.load(tmp_path), load_transformers(tmp_path)
    rows = [torch.randint(0, CFG.vocab_size, (1, s)) for s in (1, 3, 4, 5, 127, 128, 300)]
    assert largest_difference(ours, theirs, rows) < 1e-4
    assert selection_effect(ours, rows[-1]) > 1e-2


def test_names_and_dtypes_are_the_original_ones(tmp_path: Path) -> None:
    checkpoint.save(random_model(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    stem = "layers.1.attn"
    expected = {
        "embed.weight": torch.bfloat16,
        "head.weight": torch.bfloat16,
        "norm.weight": torch.float32,
        "hc_head_fn": torch.float32,
        "layers.0.hc_attn_scale": torch.float32,
        "layers.0.ffn.gate.tid2eid": torch.int64,
        "layers.2.ffn.gate.bias": torch.float32,
        "layers.3.ffn.experts.3.w2.weight": torch.bfloat16,
        "layers.3.ffn.shared_experts.w3.weight": torch.bfloat16,
        f"{stem}.wq_a.weight": torch.bfloat16,
        f"{stem}.attn_sink": torch.float32,
        f"{stem}.compressor.ape": torch.float32,
        f"{stem}.indexer.compressor.wgate.weight": torch.bfloat16,
        f"{stem}.indexer.weights_proj.weight": torch.bfloat16,
        "mtp.0.enorm.weight": torch.float32,
        "mtp.0.e_proj.weight": torch.bfloat16,
        "mtp.0.h_proj.weight": torch.bfloat16,
        "mtp.0.hc_head_base": torch.float32,
        "mtp.0.norm.weight": torch.float32,
        "mtp.0.ffn.gate.bias": torch.float32,
    }
    assert {n: tensors[n].dtype for n in expected} == expected
    assert not [n for n in tensors if n.startswith("mtp.0.") and ("emb." in n or ".head." in n)]


def test_every_parameter_learns_and_future_tokens_do_not_leak() -> None:
    model = random_model().train()
    ids = torch.randint(0, CFG.vocab_size, (2, 300))
    main, mtp, index = losses(model, ids)
    (main + mtp + index).backward()
    assert not [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    model.eval()
    changed = ids.clone()
    changed[:, 200] = (ids[:, 200] + 1) % CFG.vocab_size
    with torch.no_grad():
        before, after = model(ids), model(changed)
    torch.testing.assert_close(before.main[:, :200], after.main[:, :200])
    torch.testing.assert_close(before.mtp[:, :199], after.mtp[:, :199])
    assert not torch.equal(before.mtp[:, 199], after.mtp[:, 199])


def test_sinkhorn_gradient_and_result() -> None:
    m = torch.rand(4, 4, 3, dtype=torch.float64) + 0.1
    m.requires_grad_()
    out = hyper.Sinkhorn.apply(m, 20, 1e-6)
    torch.testing.assert_close(out.sum(0), torch.ones(4, 3, dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.sum(1), torch.ones(4, 3, dtype=torch.float64), atol=1e-4, rtol=0)
    assert torch.autograd.gradcheck(lambda x: hyper.Sinkhorn.apply(x, 5, 1e-6), (m,))


def test_index_divergence_is_zero_only_for_the_attended_distribution() -> None:
    visible = torch.ones(3, 5, dtype=torch.bool)
    scores = torch.randn(1, 3, 1, 5)
    p = 0.5 * scores.softmax(-1)
    assert float(index_divergence(scores[:, :, 0], scores, p, visible)) == pytest.approx(
        0, abs=1e-5
    )
    assert float(index_divergence(torch.zeros(1, 3, 5), scores, p, visible)) > 1e-2


def test_stories_are_deterministic_and_do_not_repeat() -> None:
    first = list(itertools.islice(stories(7), 300))
    assert first == list(itertools.islice(stories(7), 300))
    assert first[:20] != list(itertools.islice(stories(8), 20))
    assert len({s.text for s in first}) == len(first)
    for story in first:
        assert not set("{}") & set(story.text)
        assert not [x for x in (" a a", "  ", "..") if x in story.text]
        assert story.text.count('"') % 2 == 0
        assert story.text.endswith((".", '"'))


def test_held_out_titles_are_never_trained_on() -> None:
    trained = itertools.islice(documents(3, held_out=False), 2000)
    kept = itertools.islice(documents(4, held_out=True), 100)
    titles = {d.split("<|story|>")[1].split("\n")[0] for d in trained if "<|story|>" in d}
    assert titles.isdisjoint(
        d.split("<|story|>")[1].split("\n")[0] for d in kept if "<|story|>" in d
    )


def test_tokenizer_round_trip_and_chat_template(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    cfg = dataclasses.replace(CFG, vocab_size=400)
    save_tokenizer(train_tokenizer(cfg.vocab_size, seed=1, count=200), cfg, tmp_path)
    checkpoint.save(random_model(cfg), tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for text in ("Once upon a time", "naïve 漢字 🐢\n\tx"):
        ids = tokenizer(text).input_ids
        assert ids[0] == cfg.bos_token_id
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
    chat = [
        {"role": "system", "content": "ignored"},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "answer"},
        {"role": "user", "content": " A story about a fox. "},
    ]
    assert tokenizer.chat_template == CHAT_TEMPLATE
    rendered = tokenizer.apply_chat_template(chat, tokenize=False)
    assert rendered == "<|bos|><|user|>A story about a fox.<|story|>"
    ids = encode(tokenizer.backend_tokenizer, rendered)
    assert (ids[0], ids[1], ids[-1]) == (0, 2, 3)


def test_batches_start_with_a_document() -> None:
    tokenizer = train_tokenizer(400, seed=1, count=200)
    ids = next(batches(tokenizer, seed=1, batch=3, length=700))
    assert ids.shape == (3, 700)
    assert (ids[:, 0] == 0).all()
    assert (ids == 1).any()


def test_a_few_steps_of_training_lower_the_loss(tmp_path: Path) -> None:
    cfg = dataclasses.replace(CFG, vocab_size=400)
    recipe = Recipe(steps=30, workers=1, compile=False, short=(2, 64), long=(1, 192))
    train(recipe, cfg, tmp_path)
    model = checkpoint.load(tmp_path)
    rows = batches(train_tokenizer(cfg.vocab_size, recipe.seed), 5, 2, 128, held_out=True)
    with torch.no_grad():
        main, mtp, _ = losses(model, next(rows))
    guessing = float(torch.log(torch.tensor(float(cfg.vocab_size))))
    assert float(main) < guessing - 0.5
    assert float(mtp) < guessing - 0.3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"compress_ratios": (0, 4)}, "needs 7"),
        ({"compress_ratios": (0, 8, 128, 4, 128, 0, 0)}, r"not \[8\]"),
        ({"compress_ratios": (0, 4, 128, 4, 128, 0, 4)}, "sliding window only"),
        ({"o_groups": 3}, "multiple of"),
    ],
)
def test_impossible_shapes_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CFG, **change)
