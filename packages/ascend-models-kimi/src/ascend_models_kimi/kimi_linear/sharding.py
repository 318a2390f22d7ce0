"""Which part of every tensor a rank holds."""

from __future__ import annotations

from dataclasses import dataclass

from ascend_ops_core.errors import InvalidInputError

from ascend_models_kimi.kimi_linear.config import KimiLinearSpec


@dataclass(frozen=True)
class Shard:
    """Half-open ranges of one rank.

    Attributes:
        heads: query heads of latent attention.
        delta_heads: heads of KDA.
        dense: channels of the MLP of dense layers.
        intermediate: channels of each routed expert.
        shared: channels of the shared experts, which are one MLP.
        vocabulary: rows of embedding and head.
    """

    heads: tuple[int, int]
    delta_heads: tuple[int, int]
    dense: tuple[int, int]
    intermediate: tuple[int, int]
    shared: tuple[int, int]
    vocabulary: tuple[int, int]

    @property
    def num_heads(self) -> int:
        """Query heads of this rank."""
        return self.heads[1] - self.heads[0]

    @property
    def num_delta_heads(self) -> int:
        """KDA heads of this rank."""
        return self.delta_heads[1] - self.delta_heads[0]

    @classmethod
    def of(
        cls,
        spec: KimiLinearSpec,
        size: int,
        rank: int,
        vocabulary: tuple[int, int],
        *,
        whole_experts: bool = False,
    ) -> Shard:
        """Ranges of ``rank`` among ``size``.

        Args:
            spec: the model's config.
            size: tensor-parallel ranks.
            rank: one of them.
            vocabulary: its rows of embedding and head.
            whole_experts: ranks share routed experts out whole, which no table of tensors has to
                know; else every rank has a slice of each.

        Raises:
            InvalidInputError: ``size`` does not divide the heads or a network's channels.
        """
        sliced = _sliced(spec, whole_experts=whole_experts)
        if any(value % size for value in sliced.values()):
            name, value = next((n, v) for n, v in sliced.items() if v % size)
            usable = [
                n
                for n in range(1, spec.num_attention_heads + 1)
                if not any(v % n for v in sliced.values())
            ]
            raise InvalidInputError(
                f"tensor_parallel_size={size}",
                f"it must divide {name}={value}",
                f"Use one of {usable}.",
            )

        def part(total: int) -> tuple[int, int]:
            return rank * (total // size), (rank + 1) * (total // size)

        inter = spec.moe_intermediate_size
        return cls(
            heads=part(spec.num_attention_heads),
            delta_heads=part(spec.delta.num_heads),
            dense=part(spec.intermediate_size),
            intermediate=(0, inter) if whole_experts else part(inter),
            shared=part(spec.shared_intermediate_size),
            vocabulary=vocabulary,
        )


def _sliced(spec: KimiLinearSpec, *, whole_experts: bool) -> dict[str, int]:
    """Sizes that the tensor-parallel ranks divide among them, by name."""
    sliced = {
        "num_attention_heads": spec.num_attention_heads,
        "linear_attn_config.num_heads": spec.delta.num_heads,
    }
    if not all(spec.moe_layers):
        sliced["intermediate_size"] = spec.intermediate_size
    if spec.num_experts:
        if not whole_experts:
            sliced["moe_intermediate_size"] = spec.moe_intermediate_size
        elif spec.n_shared_experts:
            sliced["moe_intermediate_size * num_shared_experts"] = spec.shared_intermediate_size
    return sliced
