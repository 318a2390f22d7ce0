"""ReferenceWorker: vLLM's CPU worker, with load balancing of experts."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from ascend_vllm_plugin.eplb import start_balancing


class ReferenceWorker(CPUWorker):
    """Used where ``enable_eplb`` is set; vLLM's CPU runner calls a balancer, but makes none."""

    def load_model(self, **kwargs: Any) -> None:
        """Load the model, and balance its experts from then on."""
        super().load_model(**kwargs)
        start_balancing(self.model_runner)
