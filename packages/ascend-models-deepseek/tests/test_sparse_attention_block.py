"""The attention block of DeepSeek-V3.2 and GLM-5 against transformers, chunk by chunk."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_attention.layers.mla import AscendMultiHeadLatentAttention, MLAShape
from ascend_attention.layers.token_indexer import IndexerShape, TokenIndexer
from ascend_attention.ops.mla_cache import kv_rmsnorm_rope_cache
from ascend_attention.ops.paged_rows import RowIndex, write_rows
from ascend_attention.ops.sparse_mla import sparse_mla
from ascend_attention.ops.token_indexer import select_tokens
from ascend_models_deepseek.architectures import ARCHITECTURES
from ascend_models_deepseek.deepseek_v3.sharding import Shard
from ascend_models_deepseek.testing import FLOAT32_LOGITS_ATOL
from ascend_models_deepseek.testing.tiny_v32 import V32_SPECS, classes_of
from ascend_ops_core.checkpoint.table import WeightTable
from torch import nn

LENGTH, PAGE = 90, 16


class Block(nn.Module):
    """Our layer's weights, under the names that the table of tensors fills."""

    def __init__(self, spec: Any) -> None:
        super().__init__()
        self.weights = AscendMultiHeadLatentAttention(
            MLAShape(
                spec.hidden_size,
                spec.num_attention_heads,
                spec.q_lora_rank,
                spec.kv_lora_rank,
                spec.qk_nope_head_dim,
                spec.qk_rope_head_dim,
                spec.v_head_dim,
                spec.softmax_scale,
                spec.rms_norm_eps,
            ),
            torch.float32,
        )
        self.indexer = TokenIndexer(
            IndexerShape(
                spec.hidden_size,
                spec.q_lora_rank,
                spec.index_n_heads,
                spec.index_head_dim,
                spec.qk_rope_head_dim,
                spec.index_topk,
                spec.indexer_rope_interleave,
            ),
            torch.float32,
        )


def theirs(name: str) -> tuple[Any, Any, Any]:
    """transformers' attention of the first layer with random weights, its rotation, its config."""
    config_class, _ = classes_of(V32_SPECS[name].published_config()["model_type"])
    given = V32_SPECS[name].published_config()
    config = config_class(**{k: v for k, v in given.items() if k != "architectures"})
    config._attn_implementation = "eager"
    module = __import__(
        f"transformers.models.{given['model_type']}.modeling_{given['model_type']}", fromlist=["x"]
    )
    prefix = config_class.__name__.removesuffix("Config")
    torch.manual_seed(4)
    attention = getattr(module, f"{prefix}Attention")(config, 0).float().eval()
    for key, value in attention.named_parameters():
        noise = torch.randn(value.shape)
        near_one = "norm" in key and not key.endswith("bias")
        value.data = 1 + 0.1 * noise if near_one else noise / value.shape[-1] ** 0.5
    return attention, getattr(module, f"{prefix}RotaryEmbedding")(config), config


@pytest.mark.parametrize("chunk", [LENGTH, 25, 7])
@pytest.mark.parametrize("name", ["v32", "glm"])
@torch.no_grad()
def test_the_block_equals_transformers(name: str, chunk: int) -> None:
    attention, rotary, config = theirs(name)
    published = V32_SPECS[name].published_config()
    architecture = ARCHITECTURES[published["model_type"]]
    spec: Any = architecture.spec.from_config(published)
    block = Block(spec)
    rules = architecture.rules(spec, Shard.of(spec, 1, 0, (0, 512)), 0, "attn", "attn")
    table = WeightTable(dict(rules), ())
    holder = nn.Module()
    holder.attn = block
    table.load(holder, ((f"attn.{k}", v) for k, v in attention.state_dict().items()))

    hidden = torch.randn(LENGTH, config.hidden_size)
    turns = rotary(hidden[None], torch.arange(LENGTH)[None])
    mask = torch.full((LENGTH, LENGTH), torch.finfo(torch.float32).min).triu(1)[None, None]
    wanted = attention(hidden[None], turns, mask)[0][0]
    everything = {"index_topk": LENGTH}
    kept, attention.indexer.index_topk = attention.indexer.index_topk, everything["index_topk"]
    dense = attention(hidden[None], turns, mask)[0][0]
    assert float((dense - wanted)[kept:].abs().max()) > 0.05

    half = spec.qk_rope_head_dim // 2
    cos, sin = (one[0, :, :half].float() for one in turns)
    blocks = -(-LENGTH // PAGE)
    table_row = torch.randperm(blocks + 2)[:blocks].int()[None]
    latents = torch.full((blocks + 2, PAGE, spec.kv_lora_rank), float("nan"))
    ropes = torch.full((blocks + 2, PAGE, spec.qk_rope_head_dim), float("nan"))
    keys = torch.full((blocks + 2, PAGE, spec.index_head_dim), float("nan"))
    outputs = []
    for start in range(0, LENGTH, chunk):
        part = slice(start, min(start + chunk, LENGTH))
        where = torch.arange(part.start, part.stop)
        index = RowIndex(table_row[0, where // PAGE].long(), where % PAGE)
        weights, turn = block.weights, (cos[part], sin[part])
        query = weights.project(hidden[part], *turn)
        kv_rmsnorm_rope_cache(
            query.kv, weights.kv_a_norm, spec.rms_norm_eps, *turn, latents, ropes, index
        )
        asked = block.indexer.project(hidden[part], query.q_input, *turn, rotate=False)
        write_rows(keys, asked.key, index)
        step = (
            torch.tensor([part.stop - part.start], dtype=torch.int32),
            torch.tensor([part.stop], dtype=torch.int32),
        )
        selected = select_tokens(
            asked.query, asked.head_weights, keys, table_row, *step, spec.index_topk
        )
        attended = sparse_mla(
            weights.absorb(query.q_nope),
            query.q_rope,
            latents,
            ropes,
            selected,
            table_row,
            *step,
            spec.softmax_scale,
        )
        outputs.append(weights.output(weights.values(attended)))
    assert float((torch.cat(outputs) - wanted).abs().max()) <= FLOAT32_LOGITS_ATOL
