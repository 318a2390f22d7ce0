"""vLLM's ranks and steps, as this package's layer asks for them."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.errors import InvalidInputError
from vllm.distributed import get_dp_group, get_ep_group, get_tp_group
from vllm.forward_context import get_forward_context, is_forward_context_available

from ascend_fused_moe.groups import MoEGroup, ParallelGroups, SingleRank, TorchGroup

__all__ = ["groups_of_vllm", "tokens_of_step"]


def groups_of_vllm(config: Any) -> ParallelGroups:
    """The groups of a layer with vLLM's ``FusedMoEParallelConfig``.

    Raises:
        InvalidInputError: prefill context parallelism, whose ranks share tokens in another way.
    """
    if config.pcp_size > 1:
        raise InvalidInputError(
            f"prefill_context_parallel_size={config.pcp_size}",
            "fused experts of ascend-fused-moe know tensor and data parallelism",
            "Set it to 1.",
        )
    return ParallelGroups(
        _of(get_tp_group()),
        _of(get_dp_group()),
        _of(get_ep_group()) if config.use_ep else SingleRank(),
    )


def _of(coordinator: Any) -> MoEGroup:
    if coordinator.world_size == 1:
        return SingleRank()
    return TorchGroup(coordinator.device_group)


def tokens_of_step(x: torch.Tensor, groups: ParallelGroups, shared_out: bool) -> tuple[int, ...]:
    """Tokens of each data-parallel part in this step, padding included.

    Args:
        x: ``[T, H]``, this rank's rows.
        groups: the layer's ranks.
        shared_out: sequence parallelism. vLLM pads a part's tokens to a multiple of its ranks, so
            every rank has the same number.
    """
    sharing = groups.tp.world_size if shared_out else 1
    known = get_forward_context().dp_metadata if is_forward_context_available() else None
    if known is None:
        return (x.shape[0] * sharing,)
    counts = known.num_tokens_across_dp_cpu.tolist()
    return tuple(-(-count // sharing) * sharing for count in counts)
