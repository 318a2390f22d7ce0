"""Which part of every tensor a rank holds."""

from __future__ import annotations

from dataclasses import dataclass

from ascend_attention.layers.output_projection import (
    ProjectionPart,
    ProjectionSettings,
    choose_projection,
)
from ascend_ops_core.errors import InvalidInputError

from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec


@dataclass(frozen=True)
class Shard:
    """Half-open ranges of one rank.

    Attributes:
        heads: query heads.
        projection: of the output projection.
        intermediate: channels of each routed expert.
        shared_intermediate: channels of the shared expert.
        vocabulary: rows of embedding and head.
    """

    heads: tuple[int, int]
    projection: ProjectionPart
    intermediate: tuple[int, int]
    shared_intermediate: tuple[int, int]
    vocabulary: tuple[int, int]

    @property
    def num_heads(self) -> int:
        return self.heads[1] - self.heads[0]

    @classmethod
    def of(
        cls,
        spec: DeepseekV4Spec,
        size: int,
        rank: int,
        vocabulary: tuple[int, int],
        projection: ProjectionPart | None = None,
        *,
        whole_experts: bool = False,
    ) -> Shard:
        """Ranges of ``rank`` among ``size``.

        Args:
            spec: the model's config.
            size: tensor-parallel ranks.
            rank: one of them.
            vocabulary: its rows of embedding and head.
            projection: its part of the output projection, by default that of the variant which
                is chosen for such ranks alone.
            whole_experts: ranks share routed experts out whole, which no table of tensors has to
                know; else every rank has a slice of each.

        Raises:
            InvalidInputError: ``size`` does not divide the heads or the experts' channels, or
                no variant of the output projection fits.
        """
        reason = _refusal(spec, size, whole_experts)
        if reason:
            common = spec.num_attention_heads
            usable = [n for n in range(1, common + 1) if not _refusal(spec, n, whole_experts)]
            raise InvalidInputError(f"tensor_parallel_size={size}", reason, f"Use one of {usable}.")

        def part(total: int) -> tuple[int, int]:
            return rank * (total // size), (rank + 1) * (total // size)

        inter = spec.moe_intermediate_size
        return cls(
            heads=part(spec.num_attention_heads),
            projection=projection or ProjectionPart.of(_settings(spec, size), rank),
            intermediate=(0, inter) if whole_experts else part(inter),
            shared_intermediate=part(inter * spec.n_shared_experts),
            vocabulary=vocabulary,
        )


def _refusal(spec: DeepseekV4Spec, size: int, whole_experts: bool) -> str:
    """Why ``size`` ranks cannot share the model; empty if they can."""
    sliced = {
        "num_attention_heads": spec.num_attention_heads,
        "moe_intermediate_size": spec.moe_intermediate_size,
    }
    if whole_experts:
        shared = sliced.pop("moe_intermediate_size") * spec.n_shared_experts
        sliced["moe_intermediate_size * n_shared_experts"] = shared
    for name, value in sliced.items():
        if value % size:
            return f"it must divide {name}={value}"
    try:
        choose_projection("auto", _settings(spec, size))
    except InvalidInputError as error:
        return error.limit
    return ""


def _settings(spec: DeepseekV4Spec, size: int) -> ProjectionSettings:
    return ProjectionSettings(
        "cpu",
        spec.num_attention_heads,
        spec.head_dim,
        spec.o_groups,
        spec.o_lora_rank,
        tensor_parallel=size,
    )
