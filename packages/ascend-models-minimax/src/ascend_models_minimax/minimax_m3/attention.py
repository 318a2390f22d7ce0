"""MiniMax-M3's attention blocks: GQA over all blocks of a context, or over selected ones."""

from __future__ import annotations

from ascend_attention.vllm.msa import BlockSelectionShape, MSAAttention
from vllm.distributed.parallel_state import get_tp_group

from ascend_models_minimax.minimax_m3.build import Build
from ascend_models_minimax.minimax_m3.sharding import qkv_shape


class MiniMaxM3Attention(MSAAttention):
    """Attention of one layer to its whole context.

    Args:
        build: what all layers share.
        layer: number of the layer, MTP layers after the main ones.
        prefix: name of the layer, with its number.
    """

    def __init__(self, build: Build, layer: int, prefix: str) -> None:
        tp = get_tp_group()
        super().__init__(
            qkv_shape(
                build.spec,
                layer,
                build.shard.size,
                build.shard.rank,
                index_apart=layer in build.checkpoint.apart,
            ),
            self.selection(build),
            build.spec.rms_norm_eps,
            build.dtype,
            prefix,
            block_tokens=build.block_tokens,
            device=build.device,
            # A5's attention does not share scores (vllm-ascend main 2026-08, `msa_m3.py`).
            group=None if tp.world_size == 1 or build.device == "A5" else tp,
        )
        param = f"{build.param(layer)}.self_attn"
        build.hold(self, param, ("o_proj",))
        build.hold(self.qkv_proj, f"{param}.qkv_proj", ("weight",))
        if self.indexer_proj is not None:
            build.hold(self.indexer_proj, f"{param}.indexer_proj", ("weight",))

    def selection(self, build: Build) -> BlockSelectionShape | None:
        """How the layer selects blocks; None for all of them."""
        return None


class MiniMaxM3SparseAttention(MiniMaxM3Attention):
    """Attention of one layer to the blocks that its indexer selects."""

    def selection(self, build: Build) -> BlockSelectionShape | None:
        """How the layer selects blocks."""
        chosen = build.spec.selection
        assert chosen is not None
        return BlockSelectionShape(
            chosen.heads,
            chosen.head_dim,
            chosen.topk_blocks,
            chosen.init_blocks,
            chosen.local_blocks,
        )
