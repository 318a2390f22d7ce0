"""Counts the load of a model's layers and moves their experts, every so many steps."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from ascend_ops_core.checks import require_at_least
from ascend_ops_core.errors import InvalidInputError

from ascend_fused_moe.eplb.exchange import Exchange
from ascend_fused_moe.eplb.load import ExpertLoadWindow
from ascend_fused_moe.eplb.maps import EplbLayerMaps
from ascend_fused_moe.eplb.placement import ExpertPlacement
from ascend_fused_moe.eplb.plan import plan_rebalance
from ascend_fused_moe.eplb.transaction import RebalanceError

__all__ = ["BalancedLayer", "EplbBalancer", "RebalanceReport"]

_logger = logging.getLogger(__name__)


class BalancedLayer(Protocol):
    """What is asked of a layer, such as :class:`AscendRoutedExperts`."""

    maps: EplbLayerMaps

    def init_eplb(
        self, load: torch.Tensor, num_unpadded_tokens: torch.Tensor | None = None
    ) -> None:
        """Count from now on."""

    def rebalance(self, table: ExpertPlacement | Sequence[int], exchange: Exchange) -> int:
        """Move experts on all ranks, or on none."""


@dataclass(frozen=True)
class RebalanceReport:
    """What came of one round.

    Attributes:
        before: mean over the layers of the busiest rank's tokens over the ranks' mean, as counted.
        after: the same as it would have been with the placements that hold now.
        moved: places of all ranks and layers that hold another expert.
        failure: why a layer's experts stayed where they were, as those of later layers did; empty
            if none failed.
    """

    before: float
    after: float
    moved: int
    failure: str = ""


class EplbBalancer:
    """Load counting and rebalancing of all layers of a model on one rank.

    Every rank of the expert-parallel group makes the same calls, also in steps without tokens.
    Loads are added up over the ranks, so each counts its own tokens, or all count all.

    Args:
        layers: with the same number of places.
        exchange: the ranks.
        window: of the steps between two rebalances, the last that count.
        interval: steps between two rebalances; the first comes after a quarter of them, since what
            was loaded is not balanced at all.
        device: of the counters; None for that of the layers' maps.

    Attributes:
        num_unpadded_tokens: ``[1]`` int32: rows of the present step that are tokens, from
            :meth:`begin`; it stays where it is, so a captured graph may read it.
        last: the last round's report, or None.

    Raises:
        InvalidInputError: no layers, or layers with different numbers of places.
    """

    def __init__(
        self,
        layers: Sequence[BalancedLayer],
        exchange: Exchange,
        *,
        window: int = 1000,
        interval: int = 3000,
        device: torch.device | None = None,
    ) -> None:
        require_at_least("window", window, 1)
        require_at_least("interval", interval, 1)
        places = {layer.maps.placement.places for layer in layers}
        if len(places) != 1:
            raise InvalidInputError(
                f"{len(layers)} layers with {sorted(places) or 'no'} places",
                "the layers of a balancer have the same number of places",
                "Pass the layers of one model, all with its redundant experts.",
            )
        self.layers = list(layers)
        self.exchange = exchange
        self.interval = interval
        self.last: RebalanceReport | None = None
        self._steps = interval - -(-interval // 4)
        self._window = ExpertLoadWindow(
            len(layers),
            places.pop(),
            min(window, interval),
            multistage=False,
            device=device or layers[0].maps.routing_table.device,
        )
        self._counted = min(window, interval)
        self.num_unpadded_tokens = torch.zeros(
            1, dtype=torch.int32, device=self._window.current.device
        )
        for place, layer in enumerate(self.layers):
            layer.init_eplb(self._window.of_layer(place), self.num_unpadded_tokens)

    def begin(self, tokens: int) -> None:
        """Start a step: what was counted outside of steps, as in warm-up runs, is forgotten.

        Args:
            tokens: rows that this rank has, without padding.
        """
        self._window.current.zero_()
        self.num_unpadded_tokens.fill_(tokens)

    def step(self, *, counts: bool = True) -> RebalanceReport | None:
        """End a step; on the last one of an interval, rebalance.

        Args:
            counts: whether this rank's tokens were some; False for those that are made up, so that
                it joins the collectives of other ranks.

        Returns:
            The report of a rebalance, if there was one.
        """
        if counts and self.interval - self._steps <= self._counted:
            self._window.advance()
        self._steps += 1
        if self._steps < self.interval:
            return None
        self._steps = 0
        return self.rebalance()

    def rebalance(self) -> RebalanceReport:
        """Plan from the load that was counted, and put each layer's plan into effect.

        A layer whose experts cannot be moved stays as it was on every rank, and ends the round;
        what was moved before stays moved. The load is counted anew.
        """
        before, after, moved, failure = 0.0, 0.0, 0, ""
        for layer, counted in zip(self.layers, self._counts(), strict=True):
            placement = layer.maps.placement
            load = ExpertLoadWindow.of_experts(counted, placement).tolist()
            most = min(layer.maps.max_replicas, placement.ranks)
            plan = plan_rebalance(placement, load, most)
            reached = plan.before if failure else plan.after
            if plan.moved and not failure:
                try:
                    layer.rebalance(plan.placement, self.exchange)
                    moved += plan.moved
                except RebalanceError as error:
                    failure, reached = str(error), plan.before
            before += _unevenness(counted.view(placement.ranks, -1)) / len(self.layers)
            after += reached / len(self.layers)
        self._window.clear()
        self.last = RebalanceReport(before, after, moved, failure)
        if failure:
            _logger.error(
                "Experts were not rebalanced, in %d steps again: %s", self.interval, failure
            )
        elif self.exchange.rank == 0:
            _logger.info(
                "Experts rebalanced: the busiest rank has %.3f times the mean load, before %.3f; "
                "%d places changed.",
                after,
                before,
                moved,
            )
        return self.last

    def _counts(self) -> torch.Tensor:
        """``[layers, places]`` int64 on the host: what all ranks have counted."""
        mine = self._window.total().tolist()
        ranks = [json.loads(words) for words in self.exchange.said(json.dumps(mine))]
        return torch.tensor(ranks, dtype=torch.int64, device="cpu").sum(0)


def _unevenness(counted: torch.Tensor) -> float:
    """The busiest rank's tokens over the mean of the ranks, from ``[ranks, places]``."""
    tokens = counted.sum(1).double()
    return float(tokens.max() / tokens.mean()) if int(tokens.sum()) else 1.0
