"""What a test asks of the experts in a worker; vLLM mixes it into the worker's class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ExpertsProbe:
    """Methods for ``collective_rpc``."""

    model_runner: Any

    def expert_placements(self) -> list[list[int]]:
        """The logical expert of every place of each layer, after a round that went well."""
        balancer = self.model_runner.eplb_state.balancer
        assert balancer.last is not None
        assert not balancer.last.failure
        return [list(layer.maps.placement.physical_to_logical) for layer in balancer.layers]

    def count_reductions(self) -> int:
        """Count from now on what layers of experts sum over ranks.

        Returns:
            Number of these layers, those of the draft left out.
        """
        from ascend_fused_moe.layers.routed_experts import AscendRoutedExperts
        from vllm.distributed.parallel_state import GroupCoordinator

        self.sums = 0
        self.sums_of_calls: list[int] = []

        def counted(collective: Callable[..., Any]) -> Callable[..., Any]:
            def call(group: Any, *args: Any, **kwargs: Any) -> Any:
                self.sums += group.world_size > 1
                return collective(group, *args, **kwargs)

            return call

        for name in ("all_reduce", "reduce_scatter"):
            setattr(GroupCoordinator, name, counted(getattr(GroupCoordinator, name)))
        layers = [
            module
            for module in self.model_runner.get_model().modules()
            if isinstance(getattr(module, "experts", None), AscendRoutedExperts)
        ]
        for layer in layers:
            layer.register_forward_pre_hook(self._enter)
            layer.register_forward_hook(self._leave)
        return len(layers)

    def reductions(self) -> list[int]:
        """Sums over ranks in every call of a layer of experts since :meth:`count_reductions`."""
        return self.sums_of_calls

    def _enter(self, *_: Any) -> None:
        self.sums = 0

    def _leave(self, *_: Any) -> None:
        self.sums_of_calls.append(self.sums)
