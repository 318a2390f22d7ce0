"""Kimi-K3's experts, which work in a width of their own beside shared experts in the model's."""

from __future__ import annotations

import torch
from ascend_ops_core.ops.linear import linear
from ascend_ops_core.ops.norm import rms_norm

from ascend_models_kimi.kimi_linear.build import Build, parameter
from ascend_models_kimi.kimi_linear.moe import KimiMoE


class AscendKimiMoE(KimiMoE):
    """Experts between a projection to their width and one back (vLLM 0.27.1's ``KimiMoE``).

    The router scores the layer's input, not the projected one. What the experts give is summed
    over ranks before its norm, which a part of a sum would not survive.

    Args:
        build: what all layers share.
        param: its name in the model.

    Attributes:
        down_proj: ``[L, H]``, the same on every rank.
        up_proj: ``[H, L]``, the same on every rank.
        norm: ``[L]`` float32, of what the experts gave; None for models without.
    """

    def __init__(self, build: Build, param: str) -> None:
        super().__init__(build, param)
        spec = build.spec
        assert spec.routed_hidden_size is not None
        self.norm_eps = spec.rms_norm_eps
        self.down_proj = parameter(spec.routed_hidden_size, spec.hidden_size, dtype=build.dtype)
        self.up_proj = parameter(spec.hidden_size, spec.routed_hidden_size, dtype=build.dtype)
        self.norm = parameter(spec.routed_hidden_size) if spec.latent_norm else None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[T, H]`` from ``hidden [T, H]``."""
        logits = linear(hidden.float(), self.gate)
        latent = linear(hidden, self.down_proj)
        shared = self.shared_experts
        if self.runner is not None:
            routed: torch.Tensor = self.runner(latent, logits)
            out = self._widened(routed)
            return out if shared is None else out + shared(hidden)
        routed = self.experts.forward_tokens(latent, *self.route(logits))
        if shared is None:
            return self._widened(self.groups.tp.all_reduce(routed))
        partial = shared.part2(shared.part1(hidden))
        if self.groups.tp.world_size == 1:
            return self._widened(routed) + partial
        # Both are parts of sums over the same ranks, and one exchange costs less than two.
        summed = self.groups.tp.all_reduce(torch.cat([routed, partial], dim=-1))
        routed, whole = summed.split([routed.shape[-1], partial.shape[-1]], dim=-1)
        return self._widened(routed.contiguous()) + whole

    def _beside_routed(self) -> None:
        """Nothing: shared experts have another width, and the routed ones a norm of their own."""

    def _widened(self, routed: torch.Tensor) -> torch.Tensor:
        """``[T, H]`` of what the experts gave, ``[T, L]``."""
        if self.norm is not None:
            routed = rms_norm(routed, self.norm, self.norm_eps)
        return linear(routed, self.up_proj)
