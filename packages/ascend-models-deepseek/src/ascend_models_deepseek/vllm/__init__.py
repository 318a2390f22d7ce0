"""Plugs this package's models into vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig


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
            "ascend-models-deepseek serves models through vLLM, which is not installed. "
            "Install it with 'ascend-models-deepseek[cpu]' or 'ascend-models-deepseek[npu]'."
        ) from error

    from ascend_ops_core.vllm.checkpoint_quantization import serve_quantized

    from ascend_models_deepseek.deepseek_v4.hf_config import AscendDeepseekV4Config

    serve_quantized("deepseek_v4")
    _CONFIG_REGISTRY["deepseek_v4"] = AscendDeepseekV4Config
    module = "ascend_models_deepseek.registry"
    ModelRegistry.register_model("DeepseekV4ForCausalLM", f"{module}:AscendDeepseekV4ForCausalLM")
    ModelRegistry.register_model("DeepSeekV4MTPModel", f"{module}:DeepSeekV4MTP")


def check_request(vllm_config: VllmConfig) -> None:
    """Refuse what cannot be served, in the process that asks for it.

    Does nothing for models of other packages.

    Raises:
        ValueError: names the value, the limit and the remedy, or lists a checkpoint's problems.
    """
    model = vllm_config.model_config
    if model is None or model.hf_config.model_type != "deepseek_v4":
        return
    from ascend_models_deepseek.deepseek_v4.validation import check_request as check

    check(vllm_config)
