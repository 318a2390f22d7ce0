"""Training of the demo's DSpark draft: every weight learns, and no block sees what it must say."""

from __future__ import annotations

import torch
from ascend_models_deepseek.testing.dspark_oracle import DSparkOracle
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

from tools.tiny_model.dspark_v4 import DRAFTS, dspark_loss, new_dspark


def oracle() -> DSparkOracle:
    torch.manual_seed(0)
    config = DeepseekV4Config(
        vocab_size=64, hidden_size=32, moe_intermediate_size=16, num_hidden_layers=4,
        num_attention_heads=2, head_dim=16, qk_rope_head_dim=4, q_lora_rank=16, o_groups=2,
        o_lora_rank=8, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
        sliding_window=8, hc_mult=2, num_hash_layers=0, layer_types=["sliding_attention"] * 4,
        mlp_layer_types=["moe"] * 4, eos_token_id=1, tie_word_embeddings=False,
    )  # fmt: skip
    config._attn_implementation = "eager"
    target = DeepseekV4ForCausalLM(config).float().eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    for parameter in target.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = noise / max(parameter.shape[-1], 1) ** 0.5
    return DSparkOracle(target, new_dspark(target))


def test_every_weight_learns() -> None:
    one = oracle()
    dspark_loss(one, torch.randint(0, 64, (2, 24))).backward()
    still = [n for n, p in one.draft.named_parameters() if p.grad is None or not p.grad.any()]
    assert still == []


def test_a_block_sees_a_window_in_front_of_its_anchor() -> None:
    one = oracle()
    ids = torch.randint(0, 64, (1, 30))
    anchors, starts = ids[:, 9:10], torch.tensor([[9]])
    aux = one.aux(ids)
    rows = one.draft.hidden(aux, anchors, starts, DRAFTS, one.embedding)
    other = aux.clone()
    other[:, 9:], other[:, :1] = 7.0, 7.0
    assert torch.equal(rows, one.draft.hidden(other, anchors, starts, DRAFTS, one.embedding))
    for seen in (1, 8):
        other = aux.clone()
        other[:, seen] = 7.0
        changed = one.draft.hidden(other, anchors, starts, DRAFTS, one.embedding)
        assert not torch.equal(rows, changed)
