"""What a test asks of the experts in a worker; vLLM mixes it into the worker's class."""

from __future__ import annotations

from typing import Any


class EplbProbe:
    """Methods for ``collective_rpc``."""

    model_runner: Any

    def expert_placements(self) -> list[list[int]]:
        """The logical expert of every place of each layer, after a round that went well."""
        balancer = self.model_runner.eplb_state.balancer
        assert balancer.last is not None
        assert not balancer.last.failure
        return [list(layer.maps.placement.physical_to_logical) for layer in balancer.layers]
