"""Adapters of low rank on the experts' two products."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from ascend_ops_core.checks import INDICES, require_dtype
from ascend_ops_core.errors import InvalidInputError

from ascend_fused_moe.experts_mlp import experts_of_rows
from ascend_fused_moe.group_list import GroupList, GroupListKind
from ascend_fused_moe.ops.grouped_mlp import grouped_matmul
from ascend_fused_moe.permutation import permute

__all__ = ["MoELoRAContext", "RowsLoRA"]

_Stacks = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class MoELoRAContext:
    """The adapters of a layer's experts, and which of them each token of a step uses.

    Names and shapes are those of vLLM's ``MoELoRAContext`` (0.27.1). ``L`` is the number of
    adapters, ``E`` that of this rank's places for experts, ``r`` the rank of the adapters; scaling
    factors are in the ``b`` stacks. With tensor parallelism ``I`` is this rank's slice.

    Attributes:
        w13_lora_a_stacked: of gate and of up, each ``[L, E, r, H]``; or one of both together, as
            ``w13`` has them. ``E`` is 1 for a factor that all experts share.
        w13_lora_b_stacked: the same, each ``[L, E, I, r]``; of both together ``[L, E, 2 * I, r]``.
        w2_lora_a_stacked: one, ``[L, E, r, I]``.
        w2_lora_b_stacked: one, ``[L, E, H, r]``; ``E`` is 1 for a factor that all experts share.
        token_lora_mapping: ``[T]`` integer: the adapter of each token, negative for none.

    Raises:
        InvalidInputError: stacks that do not belong together, all named with their shapes.
    """

    w13_lora_a_stacked: _Stacks
    w13_lora_b_stacked: _Stacks
    w2_lora_a_stacked: _Stacks
    w2_lora_b_stacked: _Stacks
    token_lora_mapping: torch.Tensor

    def __post_init__(self) -> None:
        require_dtype("token_lora_mapping", self.token_lora_mapping, INDICES)
        a, b = self._stacks
        fits = (
            len(a) == len(b) in (2, 3)
            and len(self.w2_lora_a_stacked) == len(self.w2_lora_b_stacked) == 1
            and all(one.dim() == 4 for one in a + b)
            and len({one.shape[0] for one in a + b}) == 1
            and all(one.shape[2] == other.shape[3] for one, other in zip(a, b, strict=True))
            and len({one.shape[1] for one in a + b} - {1}) <= 1
            and a[0].shape[0] > 0
        )
        if not fits:
            raise InvalidInputError(
                f"adapters of shapes {[list(one.shape) for one in a]} and "
                f"{[list(one.shape) for one in b]}",
                "expected [L, E, r, K] and [L, E, N, r] of one L and one E, or E = 1",
                "Stack the adapters of one layer.",
            )

    @property
    def _stacks(self) -> tuple[_Stacks, _Stacks]:
        return (
            (*self.w13_lora_a_stacked, *self.w2_lora_a_stacked),
            (*self.w13_lora_b_stacked, *self.w2_lora_b_stacked),
        )

    def check(self, hidden: int, inter: int, places: int) -> None:
        """Refuse adapters of other experts.

        Args:
            hidden: ``H``.
            inter: ``I`` of this rank.
            places: of this rank.

        Raises:
            InvalidInputError: sizes that the layer does not have.
        """
        a, b = self._stacks
        outputs = sum(one.shape[2] for one in b[:-1])
        for name, given, wanted in (
            ("E", {one.shape[1] for one in a + b} - {1}, places),
            ("H", {b[-1].shape[2], *(one.shape[3] for one in a[:-1])}, hidden),
            ("2 * I", {outputs, 2 * a[-1].shape[3]}, 2 * inter),
        ):
            if given - {wanted}:
                raise InvalidInputError(
                    f"adapters of {name} = {', '.join(map(str, sorted(given)))}",
                    f"the experts have {name} = {wanted}",
                    "Stack the adapters for this rank's places of the same layer.",
                )


@dataclass(frozen=True)
class RowsLoRA:
    """Adapters, and which of them each row of a rank's experts uses.

    Attributes:
        context: the adapters.
        adapters: ``[R]`` integer: the adapter of each row, negative for none.
    """

    context: MoELoRAContext
    adapters: torch.Tensor

    def first(self, rows: int) -> RowsLoRA:
        """The same for the first rows."""
        return replace(self, adapters=self.adapters[:rows])

    def of_w13(self, x: torch.Tensor, group_list: GroupList, interleaved: bool) -> torch.Tensor:
        """``[R, 2 * I]``, to be added to the first product of ``x [R, H]``.

        Args:
            x: rows in the order of the experts, not quantised.
            group_list: rows of each expert.
            interleaved: gate and up channels alternate, as in ``w13``.
        """
        given = self.context
        parts = [
            self._low_rank(x, group_list, a, b)
            for a, b in zip(given.w13_lora_a_stacked, given.w13_lora_b_stacked, strict=True)
        ]
        if len(parts) == 1:
            return parts[0]
        return torch.stack(parts, -1).flatten(1) if interleaved else torch.cat(parts, 1)

    def of_w2(self, x: torch.Tensor, group_list: GroupList) -> torch.Tensor:
        """``[R, H]``, to be added to the second product of ``x [R, I]``."""
        given = self.context
        return self._low_rank(x, group_list, given.w2_lora_a_stacked[0], given.w2_lora_b_stacked[0])

    def _low_rank(
        self, x: torch.Tensor, group_list: GroupList, a: torch.Tensor, b: torch.Tensor
    ) -> torch.Tensor:
        experts = experts_of_rows(group_list, x.shape[0])
        return self._product(self._product(x, experts, a), experts, b)

    def _product(self, x: torch.Tensor, experts: torch.Tensor, stack: torch.Tensor) -> torch.Tensor:
        """Each row by the weight of its adapter and expert, 0 without an adapter."""
        loras, places = stack.shape[:2]
        adapters = self.adapters.long()
        group = adapters * places + (experts if places > 1 else 0)
        group = torch.where((adapters >= 0) & (adapters < loras), group, -1)
        rows, index, counts = permute(x, group.unsqueeze(1), loras * places)
        at = index[:, 0]
        if not rows.shape[0]:
            return x.new_zeros(x.shape[0], stack.shape[2])
        groups = GroupList(counts, GroupListKind.COUNTS)
        if x.device.type != "cpu":
            groups = groups.with_all(rows.shape[0])
        made = grouped_matmul(rows, stack.flatten(0, 1), groups)
        return torch.where((at >= 0).unsqueeze(1), made[at.clamp(min=0)], 0.0)
