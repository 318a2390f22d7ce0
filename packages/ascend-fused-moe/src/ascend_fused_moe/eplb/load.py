"""How many tokens each place has had, step by step."""

from __future__ import annotations

import torch
from ascend_ops_core.checks import require_at_least
from ascend_ops_core.communication import Group
from ascend_ops_core.errors import InvalidInputError

from ascend_fused_moe.eplb.placement import EMPTY, ExpertPlacement

__all__ = ["ExpertLoadWindow"]


class ExpertLoadWindow:
    """Counters of the last steps, for all layers of a model.

    With ``multistage`` every step keeps counters of its own, so that a plan can see how the load
    moves; else the steps of the window are added up, which takes less memory.

    Args:
        layers: number of layers.
        places: places of all ranks.
        window: steps that count, at least 1.
        multistage: keep each step's counters.
        device: of the counters.

    Attributes:
        current: ``[layers, places]`` int32: this step's counters. They stay where they are, so a
            captured graph may write them.
    """

    def __init__(
        self,
        layers: int,
        places: int,
        window: int,
        *,
        multistage: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        require_at_least("layers", layers, 1)
        require_at_least("places", places, 1)
        require_at_least("window", window, 1)
        self.multistage = multistage
        self.current = torch.zeros(layers, places, dtype=torch.int32, device=device)
        kept = window if multistage else 1
        self._steps = torch.zeros(kept, layers, places, dtype=torch.int64, device=device)
        self._window = window
        self._seen = 0

    @property
    def steps(self) -> int:
        """Steps that the window holds."""
        if self.multistage:
            return min(self._seen, self._window)
        return (self._seen - 1) % self._window + 1 if self._seen else 0

    def of_layer(self, layer: int) -> torch.Tensor:
        """``[places]``: the counters that a layer adds to."""
        return self.current[layer]

    def advance(self) -> None:
        """End a step: keep its counters and set them to 0, all on the device.

        Without ``multistage`` the window starts anew after its last step.
        """
        if self.multistage:
            self._steps[self._seen % self._window].copy_(self.current)
        else:
            if self._seen % self._window == 0:
                self._steps.zero_()
            self._steps[0] += self.current
        self.current.zero_()
        self._seen += 1

    def per_step(self, group: Group | None = None) -> torch.Tensor:
        """``[steps, layers, places]`` int64: each step of the window, the oldest first.

        Args:
            group: ranks whose tokens are counted together; None for this rank's alone.

        Raises:
            InvalidInputError: the window keeps only sums.
        """
        if not self.multistage:
            raise InvalidInputError(
                "multistage=False", "only the sum of the window is kept", "Keep each step's load."
            )
        first = self._seen % self._window if self._seen > self._window else 0
        kept = self._steps[: self.steps].roll(-first, 0)
        return kept if group is None else group.all_reduce(kept)

    def total(self, group: Group | None = None) -> torch.Tensor:
        """``[layers, places]`` int64: the sum of the window.

        Args:
            group: ranks whose tokens are counted together; None for this rank's alone.
        """
        total = self._steps[: self.steps].sum(0)
        return total if group is None else group.all_reduce(total)

    def clear(self) -> None:
        """Forget all steps, as after a rebalance, whose places mean other experts."""
        self.current.zero_()
        self._steps.zero_()
        self._seen = 0

    @staticmethod
    def of_experts(load: torch.Tensor, placement: ExpertPlacement) -> torch.Tensor:
        """Add the replicas of each expert.

        Args:
            load: ``[..., places]``.
            placement: what the places hold.

        Returns:
            ``[..., experts]`` in ``load.dtype``.

        Raises:
            InvalidInputError: another number of places.
        """
        if load.shape[-1] != placement.places:
            raise InvalidInputError(
                f"load of {load.shape[-1]} places",
                f"the placement has {placement.places}",
                "Pass the placement under which the load was counted.",
            )
        # One column more takes what lies in places without an expert.
        expert = torch.tensor(placement.physical_to_logical, device=load.device)
        expert = torch.where(expert == EMPTY, placement.experts, expert)
        shape = (*load.shape[:-1], placement.experts + 1)
        total = torch.zeros(shape, dtype=load.dtype, device=load.device)
        return total.index_add_(-1, expert, load)[..., :-1]
