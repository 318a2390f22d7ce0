"""ReferenceWorker: vLLM's CPU worker, with what its runner cannot do by itself."""

from __future__ import annotations

from typing import Any

from ascend_attention.vllm import register as register_attention
from ascend_specdec.vllm import finish_runner, prepare_runner
from vllm.model_executor.model_loader.utils import get_model_architecture
from vllm.v1.worker.cpu_worker import CPUWorker

from ascend_vllm_plugin.compat.state_copies import use_state_copies
from ascend_vllm_plugin.eplb import start_balancing


class ReferenceWorker(CPUWorker):
    """Keeps seeds, balances experts, moves states, and drafts and verifies in blocks."""

    def init_device(self) -> None:
        """Make the runner, with our proposer and verification where they are asked for."""
        prepare_runner()
        super().init_device()
        finish_runner(self.model_runner)

    def load_model(self, **kwargs: Any) -> None:
        """Load the model, and balance its experts from then on."""
        use_state_copies()
        # Imports the model's module, whose own layers may have ours in their place.
        get_model_architecture(self.model_config)
        register_attention()
        super().load_model(**kwargs)
        start_balancing(self.model_runner)
