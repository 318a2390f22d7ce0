"""Plugs this package's models into vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig


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

    from ascend_models_deepseek.architectures import ARCHITECTURES
    from ascend_models_deepseek.deepseek_v4.hf_config import AscendDeepseekV4Config
    from ascend_models_deepseek.deepseek_v32.hf_config import AscendDeepseekV32Config

    # The last is what vLLM calls the draft of such a model.
    serve_quantized("deepseek_v4", *ARCHITECTURES, "deepseek_mtp")
    _CONFIG_REGISTRY["deepseek_v4"] = AscendDeepseekV4Config
    _CONFIG_REGISTRY["deepseek_v32"] = AscendDeepseekV32Config
    module = "ascend_models_deepseek.registry"
    for name, served in (
        ("DeepseekV4ForCausalLM", "AscendDeepseekV4ForCausalLM"),
        ("DeepSeekV4MTPModel", "DeepSeekV4MTP"),
        ("DSparkDraftModel", "DSparkDeepseekV4ForCausalLM"),
        ("DeepseekV3ForCausalLM", "AscendDeepseekV3ForCausalLM"),
        ("DeepSeekMTPModel", "AscendDeepSeekMTP"),
        ("DeepseekV32ForCausalLM", "DeepseekV32ForCausalLM"),
        ("GlmMoeDsaForCausalLM", "AscendGlmMoeDsaForCausalLM"),
    ):
        ModelRegistry.register_model(name, f"{module}:{served}")


def has_latent_caches(model_config: ModelConfig | None) -> bool:
    """Whether this package serves a model whose caches keep a latent for every token."""
    from ascend_models_deepseek.architectures import ARCHITECTURES

    return model_config is not None and model_config.hf_config.model_type in ARCHITECTURES


def check_request(vllm_config: VllmConfig) -> None:
    """Refuse what cannot be served, in the process that asks for it.

    Does nothing for models of other packages.

    Raises:
        ValueError: names the value, the limit and the remedy, or lists a checkpoint's problems.
    """
    model = vllm_config.model_config
    if model is None:
        return
    if model.hf_config.model_type == "deepseek_v4":
        from ascend_models_deepseek.deepseek_v4.validation import check_request as check_v4

        check_v4(vllm_config)
    elif has_latent_caches(model):
        from ascend_models_deepseek.deepseek_v3.validation import check_request as check_v3

        check_v3(vllm_config)
