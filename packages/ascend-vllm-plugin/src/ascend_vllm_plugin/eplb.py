"""Puts this project's balancer of experts into a model runner of vLLM."""

from __future__ import annotations

from typing import Any

from ascend_fused_moe.vllm.eplb import balance_experts
from ascend_ops_core.errors import InvalidInputError
from torch import nn


def start_balancing(runner: Any) -> None:
    """Balance the experts of the runner's model, and of its draft, if ``enable_eplb`` is set.

    The runner calls the balancer where it would call vLLM's own.

    Args:
        runner: of V1, whose models are loaded and not yet wrapped for graphs.

    Raises:
        InvalidInputError: another runner, or a model without experts that can be balanced.
    """
    config = runner.vllm_config.parallel_config
    if not config.enable_eplb:
        return
    if not hasattr(runner, "_moe_model"):
        raise InvalidInputError(
            f"enable_eplb=True with {type(runner).__module__}.{type(runner).__name__}",
            "experts are balanced under vLLM's V1 model runner",
            "Unset VLLM_USE_V2_MODEL_RUNNER.",
        )
    draft = getattr(getattr(runner, "drafter", None), "model", None)
    # vLLM has wrapped it for graphs already, where it captures some.
    models = [runner.get_model(), getattr(draft, "runnable", draft)]
    runner.eplb_state = balance_experts(
        [model for model in models if isinstance(model, nn.Module)], config
    )
    # The runner asserts that it has a model to balance, and uses it for nothing else.
    runner._moe_model = runner.get_model()
