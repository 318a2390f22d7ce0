"""Attention layers of the family without an engine, and the steps that vLLM's runner gives them.

Prompts in chunks, decodes, several tokens of a request, padding, draft tokens with the slots that
vLLM computes for them, and metadata of captured steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from ascend_attention.layers.context_parallel import ContextParallel
from ascend_attention.layers.mla import MLAShape
from ascend_attention.layers.token_indexer import IndexerShape
from ascend_attention.ops.quantized_mla import GROUP
from ascend_attention.vllm.dsa import cache_layers
from ascend_attention.vllm.mla import AscendMLAMetadataBuilder, MLAAttention
from ascend_attention.vllm.sfa import AscendSFAMetadataBuilder, SFAAttention, share_selections
from ascend_ops_core.ops.slot_mapping import compute_slot_mapping
from torch import nn
from vllm.v1.attention.backend import CommonAttentionMetadata

HEADS, PAGE, HIDDEN, TOP_K, LONGEST = 4, 16, 32, 8, 160
LOCK = threading.Lock()
# For every step the tokens of each request, whose contexts grow by them; then what is special.
STEPS: list[tuple[list[int], str]] = [
    ([1, 20, 40, 0], ""),
    ([1, 1, 30, 33], ""),
    ([3, 3, 3, 3], ""),
    ([1, 1, 1, 1], "draft"),
    ([2, 2, 2, 2], "captured"),
    ([0, 0, 0, 90], ""),
    ([1, 1, 1, 1], "padded"),
]


def shape_of(heads: int, latent: int = 24) -> MLAShape:
    """Sizes of a layer with ``heads`` on its rank."""
    return MLAShape(HIDDEN, heads, 16, latent, 8, 4, 6, 0.3, 1e-6)


INDEXER = IndexerShape(HIDDEN, 16, 2, 8, 4, TOP_K, False)


class Layers(nn.Module):
    """One or two layers of a kind on one rank.

    Args:
        kind: ``mla``, ``sfa``, ``int8`` (keys in eight bits), ``records`` (latents too) or
            ``shared`` (a layer that takes over the selection of the one in front).
        rank: of those that split the heads.
        ranks: their number.
        context: the exchanges of this rank.
    """

    def __init__(self, kind: str, rank: int, ranks: int, context: ContextParallel | None) -> None:
        super().__init__()
        shape = shape_of(HEADS // ranks, GROUP if kind == "records" else 24)
        name = f"rank.{rank}.of.x" if ranks > 1 else "whole.9.of.x"
        given: dict[str, Any] = {"block_tokens": PAGE, "context": context}
        if kind == "mla":
            layers: list[Any] = [MLAAttention(shape, torch.float32, name, **given)]
        else:
            given["device"] = "A3" if kind in ("int8", "records") else "cpu"
            given["int8_latents"] = kind == "records"
            layers = [SFAAttention(shape, INDEXER, torch.float32, name, **given)]
            if kind == "shared":
                layers.append(SFAAttention(shape, None, torch.float32, name + "2", **given))
            share_selections(layers)
        self.layers = nn.ModuleList(layers)
        self.builder: type[Any] = (
            AscendMLAMetadataBuilder if kind == "mla" else AscendSFAMetadataBuilder
        )
        self.caches: list[Any] = [
            module for layer in layers for module in layer.children() if hasattr(module, "kind")
        ]
        # Each rank holds the rows of its own heads.
        for number, layer in enumerate(layers):
            torch.manual_seed(number)
            for key, value in Layers.whole_parameters(layer).items():
                part = value
                if key.endswith(("weights.q_b", "weights.kv_b")):
                    part = value.chunk(ranks, 0)[rank]
                elif key.endswith("weights.o"):
                    part = value.chunk(ranks, 1)[rank]
                dict(layer.named_parameters())[key].data.copy_(part)

    @staticmethod
    def whole_parameters(layer: nn.Module) -> dict[str, torch.Tensor]:
        """Random parameters of all heads, the same for every rank."""
        made = {}
        for key, value in layer.named_parameters():
            sizes = list(value.shape)
            if key.endswith("weights.q_b"):
                sizes[0] = HEADS * 12
            elif key.endswith("kv_b"):
                sizes[0] = HEADS
            elif key.endswith("weights.o"):
                sizes[1] = HEADS * 6
            made[key] = torch.randn(sizes) / sizes[-1] ** 0.5
        return made

    def bind(self, blocks: int) -> None:
        """Give the caches memory that holds no numbers."""
        for cache in self.caches:
            kind = cache.kind
            if kind.dtype == torch.int8 and kind.scales is None:
                # Scales and rotated values of such bytes are no numbers.
                page = torch.full((blocks, PAGE, kind.width), -1, dtype=kind.dtype)
            elif kind.scales is None:
                page = torch.full((blocks, PAGE, kind.width), float("nan"), dtype=kind.dtype)
            else:
                page = torch.full((blocks, PAGE, kind.row_bytes), 255, dtype=torch.uint8)
            cache.bind_kv_cache(page)


class Engine:
    """Runs the steps of some layers as the engine would.

    Args:
        layers: of one rank.
        context: its exchanges.
        metadata: where layers look theirs up.
    """

    def __init__(
        self, layers: Layers, context: ContextParallel | None, metadata: dict[str, Any]
    ) -> None:
        self.layers, self.metadata = layers, metadata
        self.ranks = 1 if context is None else context.shard.ranks
        self.rank = 0 if context is None else context.shard.rank
        self.interleave = 1 if context is None else context.shard.interleave
        columns = -(-LONGEST // (PAGE * self.ranks))
        layers.bind(4 * columns + 1)
        order = torch.randperm(4 * columns, generator=torch.Generator().manual_seed(7))
        self.table = (order + 1).int().view(4, columns)
        config = SimpleNamespace(
            compilation_config=SimpleNamespace(
                static_forward_context={cache.prefix: cache for cache in layers.caches}
            ),
            model_config=SimpleNamespace(max_model_len=LONGEST),
        )
        self.builders = {
            cache.prefix: layers.builder(None, [cache.prefix], config, torch.device("cpu"))
            for cache in layers.caches
        }
        self.lens = [0] * 4

    def step(
        self, counts: list[int], special: str, hidden: torch.Tensor, angle: torch.Tensor
    ) -> torch.Tensor:
        """Outputs of the step's tokens, and of the padding behind them."""
        self.lens = [n + count for n, count in zip(self.lens, counts, strict=True)]
        starts = torch.tensor([0, *counts]).cumsum(0).int()
        lens = torch.tensor(self.lens).int()
        if special == "padded":
            starts[-1], lens[-1] = starts[-2], 0
        position = torch.cat(
            [torch.arange(n - count, n) for n, count in zip(self.lens, counts, strict=True)]
        )
        slots = torch.empty(len(position), dtype=torch.int64)
        if special == "draft":
            # vLLM takes every rank for one that has whole contexts.
            column = (position // PAGE).clamp(max=self.table.shape[1] - 1)
            slots = self.table.gather(1, column[:, None])[:, 0] * PAGE + position % PAGE
        else:
            compute_slot_mapping(
                slots, starts, position, self.table, PAGE,
                ranks=self.ranks, rank=self.rank, interleave=self.interleave,
            )  # fmt: skip
        common = CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=lens,
            num_reqs=4,
            num_actual_tokens=int(starts[-1]),
            max_query_len=max(counts),
            max_seq_len=max(self.lens),
            block_table_tensor=self.table,
            slot_mapping=slots,
        )
        for prefix, builder in self.builders.items():
            build = builder.build_for_cudagraph_capture
            # The layout of a step is kept for the next builder of the process.
            with LOCK:
                made = build(common) if special == "captured" else builder.build(0, common)
                made.get()
            self.metadata[prefix] = made
        outputs = [layer(hidden, angle.cos(), angle.sin()) for layer in self.layers.layers]
        return torch.stack(outputs)


def inputs(counts: list[int], number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states and angles of a step's tokens, the same for every rank."""
    generator = torch.Generator().manual_seed(100 + number)
    tokens = sum(counts)
    hidden = torch.randn(tokens, HIDDEN, generator=generator)
    return hidden, torch.rand(tokens, 2, generator=generator) * 6


def without_engine(replace: Callable[[Any, str, Any], None]) -> dict[str, Any]:
    """Let layers be built and run without an engine; every rank's have names of their own.

    Args:
        replace: of pytest's ``monkeypatch``, ``setattr``.

    Returns:
        Where layers look for their metadata.
    """
    made: dict[str, Any] = {}
    context = SimpleNamespace(attn_metadata=made)
    replace(cache_layers, "get_forward_context", lambda: context)

    def config() -> Any:
        return SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context={}))

    replace(cache_layers, "get_current_vllm_config", config)
    return made
