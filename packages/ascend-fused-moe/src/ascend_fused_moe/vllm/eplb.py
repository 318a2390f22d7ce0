"""Load balancing of a model that vLLM runs, in the place of vLLM's own.

vLLM's ``EplbState`` (0.27.1) needs CUDA's events and streams. This has the calls that vLLM's model
runners make of it, and vLLM's settings: ``enable_eplb``, and of ``eplb_config`` ``window_size``,
``step_interval`` and ``num_redundant_experts``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from ascend_ops_core.errors import InvalidInputError
from torch import nn
from vllm.config import ParallelConfig
from vllm.distributed.parallel_state import GroupCoordinator, get_eplb_group

from ascend_fused_moe.eplb import EplbBalancer, ProcessExchange
from ascend_fused_moe.eplb.exchange import Parcel
from ascend_fused_moe.layers.routed_experts import AscendRoutedExperts

__all__ = ["VllmEplb", "balance_experts"]

_logger = logging.getLogger(__name__)


class VllmExchange(ProcessExchange):
    """vLLM's expert-parallel group, whose weights travel as the platform's communicator says.

    Args:
        group: the group.
    """

    def __init__(self, group: GroupCoordinator) -> None:
        super().__init__(group.device_group, group.cpu_group)
        # Those of NPUs have it: torch.distributed knows nothing of simulated ones' memory.
        self._swap = getattr(group.device_communicator, "swap", super().swap)

    def swap(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> None:
        """See :class:`ascend_fused_moe.eplb.exchange.Exchange`."""
        self._swap(sends, receives)


class VllmEplb:
    """What a model runner of vLLM calls around each step.

    Args:
        balancer: of all layers.

    Attributes:
        is_async: False: experts are moved between two steps.
    """

    is_async = False

    def __init__(self, balancer: EplbBalancer) -> None:
        self.balancer = balancer

    def prepare_forward(
        self, model_config: Any, num_unpadded_tokens: int, ubatch_slices: list[Any] | None = None
    ) -> None:
        """Start a step of this many tokens on this rank."""
        self.balancer.begin(num_unpadded_tokens)

    def step(
        self, is_dummy: bool = False, is_profile: bool = False, log_stats: bool = False
    ) -> None:
        """End a step; every rank ends as many.

        Args:
            is_dummy: this rank had no tokens, and joined others.
            is_profile: a run to measure memory, which is no step.
            log_stats: not used; a rebalance logs loads by itself.
        """
        if not is_profile:
            self.balancer.step(counts=not is_dummy)


def balance_experts(models: Iterable[nn.Module], config: ParallelConfig) -> VllmEplb:
    """Balance the experts of models that were loaded, after vLLM has made its groups.

    Args:
        models: a model and its draft, if any.
        config: the engine's.

    Raises:
        InvalidInputError: none of them has an :class:`AscendRoutedExperts`.
    """
    layers = [
        module
        for model in models
        for module in model.modules()
        if isinstance(module, AscendRoutedExperts)
    ]
    if not layers:
        raise InvalidInputError(
            "enable_eplb=True",
            "the model has no experts of ascend-fused-moe, which alone are balanced here",
            "Leave enable_eplb unset.",
        )
    group, settings = get_eplb_group(), config.eplb_config
    if settings.use_async and group.rank_in_group == 0:
        _logger.info("Experts are rebalanced between two steps, whatever use_async says.")
    balancer = EplbBalancer(
        layers,
        VllmExchange(group),
        window=settings.window_size,
        interval=settings.step_interval,
        device=layers[0].w13.device,
    )
    return VllmEplb(balancer)
