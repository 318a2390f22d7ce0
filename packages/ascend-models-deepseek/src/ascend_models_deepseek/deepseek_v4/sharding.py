"""Which part of every tensor a tensor-parallel rank holds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ascend_ops_core.errors import InvalidInputError

from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec


@dataclass(frozen=True)
class Shard:
    """Half-open ranges of one rank.

    Attributes:
        heads: query heads.
        groups: groups of the output projection; they hold exactly these heads.
        intermediate: channels of each routed expert.
        shared_intermediate: channels of the shared expert.
        vocabulary: rows of embedding and head.
    """

    heads: tuple[int, int]
    groups: tuple[int, int]
    intermediate: tuple[int, int]
    shared_intermediate: tuple[int, int]
    vocabulary: tuple[int, int]

    @property
    def num_heads(self) -> int:
        return self.heads[1] - self.heads[0]

    @property
    def num_groups(self) -> int:
        return self.groups[1] - self.groups[0]

    @classmethod
    def of(cls, spec: DeepseekV4Spec, size: int, rank: int, vocabulary: tuple[int, int]) -> Shard:
        """Ranges of ``rank`` among ``size``.

        Raises:
            InvalidInputError: ``size`` does not divide the heads, the output groups or the
                experts' channels.
        """
        inter = spec.moe_intermediate_size
        for name, value in (
            ("num_attention_heads", spec.num_attention_heads),
            ("o_groups", spec.o_groups),
            ("moe_intermediate_size", inter),
        ):
            if value % size:
                common = math.gcd(spec.num_attention_heads, spec.o_groups, inter)
                usable = [n for n in range(1, common + 1) if common % n == 0]
                raise InvalidInputError(
                    f"tensor_parallel_size={size}",
                    f"it must divide {name}={value}",
                    f"Use one of {usable}.",
                )

        def part(total: int) -> tuple[int, int]:
            return rank * (total // size), (rank + 1) * (total // size)

        return cls(
            heads=part(spec.num_attention_heads),
            groups=part(spec.o_groups),
            intermediate=part(inter),
            shared_intermediate=part(inter * spec.n_shared_experts),
            vocabulary=vocabulary,
        )
