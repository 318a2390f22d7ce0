"""Plugs this package's models into vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

_MODEL_TYPES = ("kimi_linear", "kimi_k3")


def register() -> None:
    """Register configs and architectures; may be called any number of times.

    Raises:
        ImportError: vLLM is not installed; the message names the extra that brings it.
    """
    try:
        from vllm.model_executor.models import ModelRegistry
        from vllm.transformers_utils.config import _CONFIG_REGISTRY
    except ImportError as error:
        raise ImportError(
            "ascend-models-kimi serves models through vLLM, which is not installed. "
            "Install it with 'ascend-models-kimi[cpu]' or 'ascend-models-kimi[npu]'."
        ) from error

    from ascend_ops_core.vllm.checkpoint_quantization import serve_quantized

    from ascend_models_kimi.kimi_k3.hf_config import AscendKimiK3Config
    from ascend_models_kimi.kimi_linear.hf_config import AscendKimiLinearConfig

    for config in (AscendKimiLinearConfig, AscendKimiK3Config):
        _CONFIG_REGISTRY[config.model_type] = config
    serve_quantized(*_MODEL_TYPES, "kimi_k3_mtp")
    module = "ascend_models_kimi.registry"
    for name, served in (
        ("KimiLinearForCausalLM", "AscendKimiLinearForCausalLM"),
        ("KimiK3ForConditionalGeneration", "AscendKimiK3ForConditionalGeneration"),
        ("KimiK3MTPModel", "AscendKimiK3MTP"),
        ("K3DSparkModel", "AscendK3DSparkForCausalLM"),
    ):
        ModelRegistry.register_model(name, f"{module}:{served}")


def has_recurrent_states(model_config: ModelConfig | None) -> bool:
    """Whether this package serves a model that keeps a recurrent state for every request."""
    return model_config is not None and model_config.hf_config.model_type in _MODEL_TYPES


def check_request(vllm_config: VllmConfig) -> None:
    """Refuse what cannot be served, in the process that asks for it.

    Does nothing for models of other packages.

    Raises:
        ValueError: names the value, the limit and the remedy, or lists a checkpoint's problems.
    """
    if has_recurrent_states(vllm_config.model_config):
        from ascend_models_kimi.kimi_linear.validation import check_request as check

        check(vllm_config)
