"""Which output projection a model's layers have, from its config and the engine's."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from ascend_attention.layers.output_projection import (
    ExchangedOutputProjection,
    LatentParallelOutputProjection,
    OutputProjection,
    ProjectionChoice,
    ProjectionPart,
    ProjectionSettings,
    QuantizedExchangedOutputProjection,
    QuantizedLatentParallelOutputProjection,
    QuantizedOutputProjection,
    QuantizedProducts,
    Variant,
    choose_projection,
)
from ascend_ops_core.communication import Group
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.static_buffers import StaticBuffers
from torch import nn
from vllm.config import ParallelConfig, VllmConfig
from vllm.distributed.parallel_state import (
    GroupCoordinator,
    get_dp_group,
    get_tp_group,
    get_world_group,
    init_model_parallel_group,
)
from vllm.forward_context import get_forward_context, is_forward_context_available

from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec

logger = logging.getLogger(__name__)

VARIANT_KEY = "o_proj"
EXCHANGE_KEY = "o_proj_tensor_parallel_size"

_groups: WeakKeyDictionary[GroupCoordinator, dict[tuple[str, int], GroupCoordinator]]
_groups = WeakKeyDictionary()


def projection_settings(
    spec: DeepseekV4Spec, vllm_config: VllmConfig, family: str
) -> ProjectionSettings:
    """What the choice depends on.

    Args:
        spec: the model's config.
        vllm_config: the engine's; its ``additional_config`` may hold
            ``o_proj_tensor_parallel_size``.
        family: device family, or ``"cpu"``.

    Raises:
        InvalidInputError: ``o_proj_tensor_parallel_size`` is no positive integer.
    """
    parallel = vllm_config.parallel_config
    return ProjectionSettings(
        family,
        spec.num_attention_heads,
        spec.head_dim,
        spec.o_groups,
        spec.o_lora_rank,
        vllm_config.model_config.dtype,
        parallel.tensor_parallel_size,
        parallel.data_parallel_size,
        _exchange_size(vllm_config),
    )


def chosen_projection(
    spec: DeepseekV4Spec, vllm_config: VllmConfig, family: str
) -> ProjectionChoice:
    """The variant that ``additional_config`` asks for with ``o_proj``, by default ``"auto"``.

    Raises:
        InvalidInputError: it does not fit the model, the parallel sizes or the device family.
    """
    asked = _additional(vllm_config).get(VARIANT_KEY, "auto")
    return choose_projection(asked, projection_settings(spec, vllm_config, family))


@dataclass(frozen=True)
class ProjectionBuild:
    """What the output projections of all layers of a model are built from.

    Attributes:
        variant: how ranks share the weights, and what they are multiplied in.
        part: what of the weights this rank holds.
        rank: low rank of a group.
        hidden: hidden size.
        dtype: of the weights.
        group: the ranks that exchange rows, where the variant has any.
        buffers: where the static buffers of the exchange are.
        capacity: tokens of the largest graph; 0 for no graphs.
        device: of the buffers.
    """

    variant: Variant
    part: ProjectionPart
    rank: int
    hidden: int
    dtype: torch.dtype
    group: Group | None
    buffers: StaticBuffers
    capacity: int
    device: torch.device

    @classmethod
    def of(
        cls,
        spec: DeepseekV4Spec,
        vllm_config: VllmConfig,
        family: str,
        buffers: StaticBuffers | None,
        device: torch.device,
    ) -> ProjectionBuild:
        """For this process; all ranks make it together, since it may make groups of them.

        Args:
            spec: the model's config.
            vllm_config: the engine's config.
            family: device family, or ``"cpu"``.
            buffers: the model's static buffers; None for a model that no graph captures.
            device: of the model.

        Raises:
            InvalidInputError: see :func:`chosen_projection`.
        """
        choice = chosen_projection(spec, vllm_config, family)
        settings = projection_settings(spec, vllm_config, family)
        variant = choice.variant
        group: GroupCoordinator | None = None
        exchange_rank = 0
        if variant.layout == "otp":
            group = _exchange_group(settings.exchange, vllm_config.parallel_config)
            exchange_rank = group.rank_in_group
        elif variant.layout == "olora_tp":
            group = _latent_group(settings.ranks_per_group)
        if variant.name != "plain":
            logger.info(
                "output projection: %s (%s; %s)",
                variant.name,
                variant.weights,
                "; ".join(f"not {other}: {reason}" for other, reason in choice.refused),
            )
        return cls(
            variant,
            ProjectionPart.of(settings, get_tp_group().rank_in_group, exchange_rank),
            spec.o_lora_rank,
            spec.hidden_size,
            vllm_config.model_config.dtype,
            group,
            buffers or StaticBuffers(),
            0 if buffers is None else _graph_tokens(vllm_config, device),
            device,
        )

    def layer(self) -> OutputProjection:
        """The projection of one layer."""
        quantised = self.variant.quantised
        plain = (self.part, self.rank, self.hidden, self.dtype)
        if self.group is None:
            return (QuantizedOutputProjection if quantised else OutputProjection)(*plain)
        exchanging = (*plain, self.group, self.buffers, self.capacity, self.device)
        if self.variant.layout == "otp":
            otp = QuantizedExchangedOutputProjection if quantised else ExchangedOutputProjection
            return otp(*exchanging, rows_of=_tokens_of_every_rank)
        if quantised:
            return QuantizedLatentParallelOutputProjection(*exchanging)
        return LatentParallelOutputProjection(*exchanging)


def quantize_loaded(model: nn.Module) -> None:
    """Bring loaded weights of projections in MXFP8 into their 8-bit form."""
    for module in model.modules():
        if isinstance(module, QuantizedProducts):
            module.quantize_weights()


def _additional(vllm_config: VllmConfig) -> Mapping[str, Any]:
    given = vllm_config.additional_config
    return given if isinstance(given, Mapping) else {}


def _exchange_size(vllm_config: VllmConfig) -> int:
    size = _additional(vllm_config).get(EXCHANGE_KEY, 1)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise InvalidInputError(
            f"{EXCHANGE_KEY}={size!r}", "it is a number of ranks", "Use 1 for no exchange."
        )
    return size


def _graph_tokens(vllm_config: VllmConfig, device: torch.device) -> int:
    compilation = vllm_config.compilation_config
    mode = compilation.cudagraph_mode
    if device.type == "cpu" or mode is None or not mode.has_full_cudagraphs():
        return 0
    return compilation.max_cudagraph_capture_size or 0


def _tokens_of_every_rank(tokens: int) -> int:
    """The largest number of tokens, padding included, that a data-parallel rank has now."""
    across = get_forward_context().dp_metadata if is_forward_context_available() else None
    return tokens if across is None else int(across.num_tokens_across_dp_cpu.max())


def _exchange_group(size: int, parallel: ParallelConfig) -> GroupCoordinator:
    if size == parallel.data_parallel_size:
        return get_dp_group()
    inner = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    world = torch.distributed.get_world_size()
    return _subgroup("otp", exchange_ranks(world, parallel.data_parallel_size, inner, size))


def _latent_group(size: int) -> GroupCoordinator:
    if size == get_tp_group().world_size:
        return get_tp_group()
    return _subgroup("olora_tp", latent_ranks(torch.distributed.get_world_size(), size))


def exchange_ranks(world: int, replicas: int, inner: int, size: int) -> list[list[int]]:
    """Groups of ``otp``: ``size`` neighbouring replicas' ranks at the same place within them.

    Args:
        world: all ranks, replica by replica.
        replicas: data-parallel replicas.
        inner: ranks of a replica.
        size: ranks of a group.
    """
    ranks = torch.arange(world).view(-1, replicas, inner).transpose(1, 2)
    groups: list[list[int]] = ranks.reshape(-1, size).tolist()
    return groups


def latent_ranks(world: int, size: int) -> list[list[int]]:
    """Groups of ``olora_tp``: ``size`` neighbouring tensor-parallel ranks, which lie together."""
    groups: list[list[int]] = torch.arange(world).view(-1, size).tolist()
    return groups


def _subgroup(name: str, ranks: Sequence[Sequence[int]]) -> GroupCoordinator:
    """The group of this rank, made once for a model and its draft."""
    world = get_world_group()
    made = _groups.setdefault(world, {})
    key = (name, len(ranks[0]))
    if key not in made:
        backend = torch.distributed.get_backend(world.device_group)
        made[key] = init_model_parallel_group(
            [list(one) for one in ranks], world.local_rank, backend, group_name=name
        )
    return made[key]
