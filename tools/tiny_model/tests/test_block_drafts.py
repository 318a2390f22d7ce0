"""Training of block drafts: every weight learns, and no block sees what it must say."""

from __future__ import annotations

import pytest
import torch
from ascend_specdec.testing.block_oracle import BlockOracle
from transformers import AutoConfig, AutoModelForCausalLM

from tools.tiny_model.block_drafts import DRAFTS, draft_loss, new_draft


def oracle_of(kind: str) -> BlockOracle:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "qwen3", vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=4,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, pad_token_id=1,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    target = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    target.requires_grad_(False)
    return BlockOracle(target, new_draft(kind, target))


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "dspark"])
def test_every_weight_learns(kind: str) -> None:
    oracle = oracle_of(kind)
    draft_loss(oracle, torch.randint(0, 64, (2, 40))).backward()
    still = [n for n, p in oracle.draft.named_parameters() if p.grad is None or not p.grad.any()]
    assert still == []


@pytest.mark.parametrize("kind", ["dflash2", "dspark"])
def test_a_block_sees_only_what_stands_in_front_of_its_anchor(kind: str) -> None:
    oracle = oracle_of(kind)
    ids = torch.randint(0, 64, (1, 30))
    anchors, starts = ids[:, 9:10], torch.tensor([[9]])
    aux = oracle.aux(ids)
    rows = oracle.draft.hidden(aux, anchors, starts, DRAFTS, oracle.embedding)
    other = aux.clone()
    other[:, 9:] = 7.0
    assert torch.equal(rows, oracle.draft.hidden(other, anchors, starts, DRAFTS, oracle.embedding))
    other = aux.clone()
    other[:, 8] = 7.0
    changed = oracle.draft.hidden(other, anchors, starts, DRAFTS, oracle.embedding)
    assert not torch.equal(rows, changed)
