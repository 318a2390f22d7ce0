"""Plugs this package's models into vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

_MODEL_TYPES = ("minimax_m3_vl", "minimax_m3_text", "minimax_m3_vl_text")
_DRAFT_TYPE = "minimax_m3_mtp"


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
            "ascend-models-minimax serves models through vLLM, which is not installed. "
            "Install it with 'ascend-models-minimax[cpu]' or 'ascend-models-minimax[npu]'."
        ) from error

    from ascend_ops_core.vllm.checkpoint_quantization import serve_quantized

    from ascend_models_minimax.minimax_m3.hf_config import (
        AscendMiniMaxM3Config,
        AscendMiniMaxM3TextConfig,
        AscendMiniMaxM3VLTextConfig,
    )

    # The last is what vLLM calls the draft of such a model.
    serve_quantized(*_MODEL_TYPES, _DRAFT_TYPE)
    for config in (AscendMiniMaxM3Config, AscendMiniMaxM3TextConfig, AscendMiniMaxM3VLTextConfig):
        _CONFIG_REGISTRY[config.model_type] = config
    module = "ascend_models_minimax.registry"
    for name, served in (
        ("MiniMaxM3SparseForCausalLM", "AscendMiniMaxM3SparseForCausalLM"),
        ("MiniMaxM3MTP", "AscendMiniMaxM3MTP"),
        (
            "MiniMaxM3SparseForConditionalGeneration",
            "AscendMiniMaxM3SparseForConditionalGeneration",
        ),
    ):
        ModelRegistry.register_model(name, f"{module}:{served}")


def has_block_caches(model_config: ModelConfig | None) -> bool:
    """Whether this package serves a model whose indexer selects blocks of its caches."""
    return model_config is not None and model_config.hf_config.model_type in _MODEL_TYPES


def check_request(vllm_config: VllmConfig) -> None:
    """Refuse what cannot be served, in the process that asks for it, and set the block size.

    Does nothing for models of other packages.

    Raises:
        ValueError: names the value, the limit and the remedy, or lists a checkpoint's problems.
    """
    if has_block_caches(vllm_config.model_config):
        from ascend_models_minimax.minimax_m3.validation import check_request as check

        check(vllm_config)
