"""A layer of latent attention, of whatever kind: what is in front of attention, and its memory.

torch_npu's operators leave rotated pairs half-split. Scores do not tell, as long as queries lie as
keys do, so a layer decides once, when it is built, in which order its cache has them.
"""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.devices import DeviceFacts, facts_of
from torch import nn
from vllm.logger import init_logger

from ascend_attention.layers.mla import AscendMultiHeadLatentAttention
from ascend_attention.ops.mla_cache import write_choice
from ascend_attention.ops.mla_prolog import prolog_choice
from ascend_attention.step_bytes import IndexerSize, StepSize, latent_layer_bytes
from ascend_attention.vllm.mla.cache_layers import AscendMLACache

logger = init_logger(__name__)


class LatentLayer(nn.Module):
    """What all layers of latent attention have.

    Attributes:
        weights: projections.
        cache: latents and rotated keys.
        device: device family of the cache table.
    """

    weights: AscendMultiHeadLatentAttention
    cache: AscendMLACache
    device: str

    def selecting(self) -> IndexerSize | None:
        """The indexer that selects, for this layer or for it too; None where nothing does."""
        return None

    def working_bytes(self, facts: DeviceFacts, step: StepSize) -> int:
        """Bytes that this layer's attention works on in a step, besides its input and output."""
        shape = self.weights.shape
        return latent_layer_bytes(
            facts,
            step,
            heads=shape.num_heads,
            latent=shape.kv_lora_rank,
            rope=shape.rope_dim,
            value=shape.value_dim,
            itemsize=self.cache.query[1].itemsize,
            indexer=self.selecting(),
        )

    def choose_layout(self, device: str) -> None:
        """Let pairs lie half-split where torch_npu's operator then writes the cache.

        Args:
            device: device family of the cache table.
        """
        self.device = device
        if device == "cpu" or not self.cache.apart:
            return
        shape = self.weights.shape
        choice = write_choice(
            facts_of(device),
            self.cache.kind.dtype,
            shape.kv_lora_rank,
            shape.rope_dim,
            self.cache.kind.rows_per_block,
            interleaved=shape.interleaved,
        )
        self.weights.split = choice.implementation == "torch_npu"

    def fuse_prologue(self) -> None:
        """Take the fused operator for loaded weights if its limits allow it; log why if not."""
        if self.device == "cpu":
            return
        refusal = self.refusal()
        if refusal:
            logger.warning_once(
                "what is in front of latent attention runs step by step because of %s", refusal
            )
        elif self._fits():
            self.weights.fuse()

    def refusal(self) -> str | None:
        """What of this layer the fused operator has no form for, apart from sizes, if anything."""
        weights: Any = self.weights
        if weights.q_a_norm is None:
            return "queries without a latent"
        if not weights.shape.interleaved:
            return "rotated pairs that are half-split in the weights"
        if not self.cache.apart:
            return "latents that are cached in eight bits or beside other states"
        if self.cache.context is not None:
            return "contexts that ranks share, whose queries travel before they are absorbed"
        if not all(isinstance(one, torch.Tensor) for one in (weights.qkv_a, weights.q_b)):
            return "quantised projections"
        return None

    def _fits(self) -> bool:
        shape, kind = self.weights.shape, self.cache.kind
        assert shape.q_lora_rank is not None
        choice = prolog_choice(
            facts_of(self.device),
            kind.dtype,
            hidden=shape.hidden_size,
            q_rank=shape.q_lora_rank,
            rank=shape.kv_lora_rank,
            heads=shape.num_heads,
            nope=shape.nope_dim,
            rotary=shape.rope_dim,
            rows=kind.rows_per_block,
        )
        return choice.implementation == "torch_npu"


def fuse_prologues(model: nn.Module) -> None:
    """:meth:`LatentLayer.fuse_prologue` of every layer of a model with loaded weights."""
    for module in model.modules():
        if isinstance(module, LatentLayer):
            module.fuse_prologue()
