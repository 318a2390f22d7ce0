"""ReferenceWorker: vLLM's CPU worker, with load balancing of experts and states that move."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from ascend_vllm_plugin.compat.state_copies import use_state_copies
from ascend_vllm_plugin.eplb import start_balancing


class ReferenceWorker(CPUWorker):
    """Used where vLLM's CPU runner calls a balancer and makes none, or must move states."""

    def load_model(self, **kwargs: Any) -> None:
        """Load the model, and balance its experts from then on."""
        use_state_copies()
        super().load_model(**kwargs)
        start_balancing(self.model_runner)
