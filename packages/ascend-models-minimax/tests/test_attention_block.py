"""The attention blocks of MiniMax-M3 against transformers, chunk by chunk, and padding rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_attention.layers.qkv_indexer import QKVIndexerParts, QKVParallelLinearWithIndexer
from ascend_attention.ops.token_indexer import owners
from ascend_attention.vllm.msa import (
    AscendMiniMaxM3IndexerImpl,
    AscendMiniMaxM3Metadata,
    AscendMiniMaxM3SparseImpl,
    BlockSelectionShape,
    MSAAttention,
)
from ascend_models_minimax.minimax_m3.config import MiniMaxM3Spec
from ascend_models_minimax.minimax_m3.sharding import Shard, qkv_shape
from ascend_models_minimax.minimax_m3.weights import main_table
from ascend_models_minimax.testing import M3_SPECS
from ascend_ops_core.checkpoint.table import WeightTable
from ascend_ops_core.testing.language_models import FLOAT32_LOGITS_ATOL, oracle_run
from torch import nn

LENGTH, NAN = 90, float("nan")
LAYERS = {"sparse": 1, "dense": 0}


def theirs(layer: int) -> tuple[Any, Any, Any]:
    """transformers' attention of a layer with random weights, its rotation, its config."""
    from transformers import MiniMaxM3VLConfig
    from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as hf

    config = MiniMaxM3VLConfig(**M3_SPECS["m3"].published_config()).text_config
    config._attn_implementation = "eager"
    torch.manual_seed(4 + layer)
    attention = hf.MiniMaxM3VLAttention(config, layer).float().eval()
    for key, value in attention.named_parameters():
        noise = torch.randn(value.shape)
        value.data = 0.1 * noise if "norm" in key else noise / value.shape[-1] ** 0.5
    return attention, hf.MiniMaxM3VLRotaryEmbedding(config), config


class Block(nn.Module):
    """Our layer's weights under the names that the table of tensors fills, with caches of NaN."""

    def __init__(self, spec: MiniMaxM3Spec, layer: int, blocks: int) -> None:
        super().__init__()
        assert spec.selection is not None
        shape = qkv_shape(spec, layer, 1, 0)
        self.norm_eps = spec.rms_norm_eps
        self.qkv_proj = QKVParallelLinearWithIndexer(shape, torch.float32)
        self.o_proj = nn.Parameter(torch.empty(spec.hidden_size, 8 * 32), requires_grad=False)
        for name, part in shape.parts.items():
            if name != "v":
                norm = nn.Parameter(torch.empty(part.width), requires_grad=False)
                setattr(self, f"{name}_norm", norm)
        page = spec.selection.block_size
        both = torch.full((2, blocks, page, shape.num_kv_heads, spec.head_dim), NAN)
        self.meta: AscendMiniMaxM3Metadata | None = None
        self.cache: Any = SimpleNamespace(
            keys=both[0], values=both[1], metadata=lambda: self.meta, prefix="layers.1.attn"
        )
        self.indexer = None
        if spec.is_sparse_layer(layer):
            rows = torch.full((blocks, page, spec.selection.head_dim), NAN)
            keys: Any = SimpleNamespace(rows=rows, metadata=lambda: self.meta, prefix="")
            chosen = BlockSelectionShape(2, 32, spec.selection.topk_blocks)
            self.indexer = AscendMiniMaxM3IndexerImpl(chosen, keys, None)
            self.cache.rows = rows
        selects: Any = None if self.indexer is None else self.indexer.forward
        self.impl = AscendMiniMaxM3SparseImpl(self.cache, selects, spec.head_dim**-0.5)

    def parts(self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> QKVIndexerParts:
        """What the layer's own forward makes."""
        parts = self.qkv_proj(hidden)
        turned = {}
        for field, name in zip(parts._fields, self.qkv_proj.parts, strict=False):
            if name != "v":
                heads, norm = getattr(parts, field), getattr(self, f"{name}_norm")
                turned[field] = MSAAttention._turn(self, heads, norm, cos, sin)  # type: ignore[arg-type]
        return parts._replace(**turned)

    def step(
        self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, meta: Any
    ) -> torch.Tensor:
        """``[T, H]`` of a step; rows behind the step's tokens are padding."""
        self.meta = meta
        parts = self.parts(hidden, cos, sin)
        out = torch.full_like(parts.query, NAN)
        self.impl.forward(parts, out)
        return out.flatten(1) @ self.o_proj.T


def metadata(start: int, stop: int, table: torch.Tensor, page: int) -> AscendMiniMaxM3Metadata:
    """One request's tokens ``start`` to ``stop``, as the builder makes them."""
    tokens = stop - start
    ends, lens = (torch.tensor([n], dtype=torch.int32) for n in (tokens, stop))
    request, seen = owners(ends, lens, tokens)
    where = torch.arange(start, stop)
    slots = table[0, where // page].long() * page + where % page
    return AscendMiniMaxM3Metadata(tokens, table, request, seen - 1, slots, stop, page, False)


@pytest.mark.parametrize("chunk", [LENGTH, 25, 7])
@pytest.mark.parametrize("kind", LAYERS)
@oracle_run()
def test_the_block_equals_transformers(kind: str, chunk: int) -> None:
    layer = LAYERS[kind]
    attention, rotary, config = theirs(layer)
    spec = MiniMaxM3Spec.from_config(M3_SPECS["m3"].published_config())
    assert spec.selection is not None
    page = spec.selection.block_size
    blocks = -(-LENGTH // page)
    block = Block(spec, layer, blocks + 2)
    prefix = f"model.layers.{layer}.self_attn."
    rules = {
        name.removeprefix(prefix): rule
        for name, rule in main_table(spec, Shard.of(spec, 1, 0, (0, 512))).rules.items()
        if name.startswith(prefix)
    }
    holder = nn.Module()
    holder.model = nn.Module()
    holder.model.layers = nn.ModuleList(nn.Module() for _ in range(layer + 1))
    holder.model.layers[layer].self_attn = block
    state = {
        name.replace("indexer.q", "index_q").replace("indexer.k", "index_k"): tensor
        for name, tensor in attention.state_dict().items()
    }
    WeightTable(rules, ("no other",)).load(holder, state.items())

    hidden = torch.randn(LENGTH, config.hidden_size)
    positions = torch.arange(LENGTH)[None]
    turns = rotary(hidden[None], position_ids=positions)
    mask = torch.full((LENGTH, LENGTH), torch.finfo(torch.float32).min).triu(1)[None, None]

    def run() -> torch.Tensor:
        out: torch.Tensor = attention(hidden[None], turns, mask, position_ids=positions)[0][0]
        return out

    wanted = run()
    if kind == "sparse":
        kept, attention.indexer.topk_blocks = attention.indexer.topk_blocks, LENGTH
        assert float((run() - wanted)[kept * page :].abs().max()) > 0.05

    half = spec.rotary_dim // 2
    cos, sin = (one[0, :, :half].float() for one in turns)
    table = torch.randperm(blocks + 2)[:blocks].int()[None]
    outputs = []
    for start in range(0, LENGTH, chunk):
        part = slice(start, min(start + chunk, LENGTH))
        step = metadata(part.start, part.stop, table, page)
        outputs.append(block.step(hidden[part], cos[part], sin[part], step))
    assert float((torch.cat(outputs) - wanted).abs().max()) <= FLOAT32_LOGITS_ATOL


@oracle_run()
def test_padding_rows_give_zeros_and_change_no_cache() -> None:
    """Rows behind the step's tokens, and requests of a captured step that are not there."""
    spec = MiniMaxM3Spec.from_config(M3_SPECS["m3"].published_config())
    block = Block(spec, 1, 6)
    for parameter in block.parameters():
        parameter.data.normal_()
    hidden, turns = torch.randn(8, spec.hidden_size), torch.ones(8, 8)
    table = torch.tensor([[4, 2], [5, 0]], dtype=torch.int32)
    request, seen = owners(
        torch.tensor([2, 4], dtype=torch.int32), torch.tensor([3, 0], dtype=torch.int32), 4
    )
    # The first request's token 0 came before; its tokens 1 and 2 are in this step.
    caches = [block.cache.keys, block.cache.values, block.cache.rows]
    for cache in caches:
        cache[4, 0] = 1.0
        cache[5, -1] = 7.0
    slots = torch.tensor([4 * 16 + 1, 4 * 16 + 2, -1, -1])
    meta = AscendMiniMaxM3Metadata(4, table, request, seen - 1, slots, 32, 16, True)
    out = block.step(hidden, turns, turns, meta)
    assert bool(out[:2].isfinite().all())
    assert bool((out[:2] != 0).any())
    assert bool((out[2:] == 0).all())
    for cache in caches:
        written = cache.isfinite().flatten(2).all(-1).nonzero().tolist()
        assert written == [[4, 0], [4, 1], [4, 2], [5, 15]]
        assert bool((cache[5, -1] == 7).all())


def test_a_dummy_run_without_caches_gives_zeros() -> None:
    spec = MiniMaxM3Spec.from_config(M3_SPECS["m3"].published_config())
    block = Block(spec, 1, 2)
    for parameter in block.parameters():
        parameter.data.normal_()
    turns = torch.ones(3, 8)
    out = block.step(torch.randn(3, spec.hidden_size), turns, turns, None)
    assert bool((out == 0).all())


def test_each_head_is_normed_alone() -> None:
    """A head a hundred times as large changes no other."""
    layer: Any = SimpleNamespace(norm_eps=1e-6)
    heads, norm = torch.randn(3, 4, 32), 1 + 0.1 * torch.randn(32)
    cos, sin = torch.ones(3, 8), torch.zeros(3, 8)
    plain = MSAAttention._turn(layer, heads, norm, cos, sin)
    larger = heads.clone()
    larger[:, 1] *= 100
    turned = MSAAttention._turn(layer, larger, norm, cos, sin)
    others = [0, 2, 3]
    assert torch.equal(turned[:, others], plain[:, others])
    by_hand = heads * (heads.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * norm
    torch.testing.assert_close(plain, by_hand)


def test_visible_blocks_are_those_up_to_each_query() -> None:
    request, seen = owners(
        torch.tensor([2, 3], dtype=torch.int32), torch.tensor([9, 4], dtype=torch.int32), 4
    )
    meta = AscendMiniMaxM3Metadata(
        4, torch.zeros(2, 3, dtype=torch.int32), request, seen - 1, torch.zeros(4), 9, 4, False
    )
    assert meta.visible_blocks()[:, 0].tolist() == [[0, 1, -1], [0, 1, 2], [0, -1, -1], [-1] * 3]
