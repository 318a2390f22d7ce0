"""One layer of Kimi-K3: blocks whose inputs are mixed from the sums of earlier blocks of layers.

The residual stream restarts every ``attn_res_block_size`` layers. What was summed up to there is
kept, and attention, the feed-forward block and the head each read a mixture of all kept sums and of
the running one (Attention Residuals, Moonshot AI; vLLM 0.27.1, ``vllm/models/kimi_k3``).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from ascend_ops_core.layers.attention_residual import AttentionResidual
from ascend_ops_core.ops.norm import rms_norm

from ascend_models_kimi.kimi_linear.build import Build
from ascend_models_kimi.kimi_linear.decoder_layer import KimiBlocks


class MixedStream(NamedTuple):
    """The residual stream between layers.

    Attributes:
        sums: ``[B, T, H]``, what was summed up to the beginning of every block of layers; a layer
            reads those of the blocks that have begun.
        running: ``[T, H]``, the sum since the last of them.
        update: ``[T, H]``, what the last layer gave, not yet added; None in front of the first.
    """

    sums: torch.Tensor
    running: torch.Tensor
    update: torch.Tensor | None

    @classmethod
    def begin(cls, embedded: torch.Tensor, layers: int, block: int) -> MixedStream:
        """The stream in front of the first layer.

        Args:
            embedded: ``[T, H]``.
            layers: of the model.
            block: layers of a block.
        """
        return cls(embedded.new_empty((-(-layers // block), *embedded.shape)), embedded, None)

    def sum(self) -> torch.Tensor:
        """``[T, H]``, what was summed up since the last block of layers began."""
        return self.running if self.update is None else self.running + self.update

    def mixed(self, residual: AttentionResidual, blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The mixture of the first sums and the running one, and the running one after addition."""
        sums = self.sums[:blocks]
        if self.update is None:
            return residual(self.running, sums), self.running
        return residual.add(self.running, self.update, sums)


class AscendKimiDecoderLayer(KimiBlocks):
    """A layer on a mixed stream; see :class:`KimiBlocks`.

    Args:
        build: what all layers share.
        layer: number of the layer, a main one.
        prefix: name of the layer, with its number.
    """

    def __init__(self, build: Build, layer: int, prefix: str) -> None:
        super().__init__(build, layer, prefix)
        spec = build.spec
        assert spec.attn_res_block_size is not None
        self.block, offset = divmod(layer, spec.attn_res_block_size)
        self.begins = offset == 0
        hidden, eps = spec.hidden_size, spec.rms_norm_eps
        self.self_attention_res = AttentionResidual(hidden, eps, torch.float32)
        self.mlp_res = AttentionResidual(hidden, eps, torch.float32)

    def forward(self, stream: MixedStream) -> MixedStream:
        """The stream behind this layer, from the stream in front of it."""
        # At the beginning of a block its own sum is the running one, which is read anyway.
        known = self.block if self.begins else self.block + 1
        mixed, running = stream.mixed(self.self_attention_res, known)
        attended = self._run_self_attn(mixed)
        if self.begins:
            stream.sums[self.block] = running
            stream = MixedStream(stream.sums, attended, None)
        else:
            stream = MixedStream(stream.sums, running, attended)
        mixed, running = stream.mixed(self.mlp_res, self.block + 1)
        hidden = rms_norm(mixed, self.post_attention_layernorm, self.norm_eps)
        return MixedStream(stream.sums, running, self.ffn(hidden))

    def _run_self_attn(self, mixed: torch.Tensor) -> torch.Tensor:
        """``[T, H]`` of the layer's attention, summed over ranks."""
        return self.attend(rms_norm(mixed, self.input_layernorm, self.norm_eps))
