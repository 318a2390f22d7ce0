"""vLLM's own models with layers of ours: what cannot be served is refused before workers start."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ascend_models_deepseek.vllm import has_latent_caches
from ascend_models_kimi.vllm import has_recurrent_states
from ascend_ops_core.errors import InvalidInputError

from ascend_vllm_plugin.compressed_caches import has_compressed_caches
from ascend_vllm_plugin.latent_caches import set_latent_block_size

if TYPE_CHECKING:
    from vllm.config import ModelConfig, ParallelConfig, VllmConfig

__all__ = ["check_vllm_models", "has_vllm_latents", "prepare_vllm_latents"]

logger = logging.getLogger(__name__)

_BAILING = "BailingMoeV2_5ForCausalLM"


def has_vllm_latents(model_config: ModelConfig | None) -> bool:
    """Whether vLLM's own class serves a model with latent attention, with our layer in it."""
    ours = has_latent_caches, has_recurrent_states, has_compressed_caches
    return (
        model_config is not None
        and bool(model_config.use_mla)
        and not any(has(model_config) for has in ours)
    )


def prepare_vllm_latents(vllm_config: VllmConfig, device: str) -> None:
    """Set what such a model needs, for which vLLM itself has no backend.

    Args:
        vllm_config: the engine's config, changed in place.
        device: a key of :data:`ascend_attention.caches.DEVICE_CACHES`.

    Raises:
        InvalidInputError: a block size or another setting that its latents do not have.
    """
    from ascend_attention.vllm.mla.settings import check_upstream_latents
    from vllm.config import CompilationMode

    check_upstream_latents(vllm_config)
    if not vllm_config.model_config.is_hybrid:
        # Beside recurrent states vLLM sets the size of a block once it knows that of a state.
        set_latent_block_size(vllm_config, device)
    compilation = vllm_config.compilation_config
    if compilation.mode != CompilationMode.NONE:
        logger.info("this model is not compiled: its operators are opaque to torch.compile")
        compilation.mode = CompilationMode.NONE


def check_vllm_models(vllm_config: VllmConfig) -> None:
    """Refuse what would end in a worker, where vLLM names no reason, or in another model.

    Raises:
        InvalidInputError: ranks that cannot share the heads of Gated DeltaNet or the groups of
            Ling 2.5's norm, or a config of Ling 2.5 that vLLM's model reads otherwise than its
            authors' does.
    """
    model = vllm_config.model_config
    if model is None:
        return
    parallel = vllm_config.parallel_config
    if _BAILING in (getattr(model.hf_config, "architectures", None) or ()):
        _check_bailing(model.hf_config, parallel)
    heads = getattr(model.hf_text_config, "linear_num_key_heads", None)
    if isinstance(heads, int):
        reason = f"it must divide the linear_num_key_heads={heads} of Gated DeltaNet"
        _check_divides(parallel, heads, reason)


def _check_bailing(config: object, parallel: ParallelConfig) -> None:
    """Refuse what vLLM 0.27.1's model drops or builds otherwise.

    Facts: ``modeling_bailing_moe_v2_5.py`` of its authors (github.com/inclusionAI/Ring-V2.5).
    """
    layers, group = (
        int(getattr(config, name, 1)) for name in ("num_hidden_layers", "layer_group_size")
    )
    if group < 1 or layers % group:
        raise InvalidInputError(
            f"num_hidden_layers={layers} with layer_group_size={group}",
            "layers behind the last whole group have latent attention in the published model, and "
            "lightning attention in vLLM's",
            "Serve a checkpoint of whole groups.",
        )
    for name in ("use_bias", "use_qkv_bias"):
        if getattr(config, name, False):
            raise InvalidInputError(
                f"{name}=True",
                "vLLM's model has no biases in latent attention, and drops those of the checkpoint",
                "Serve a checkpoint without biases.",
            )
    groups = int(getattr(config, "group_norm_size", 1))
    reason = f"it must divide the group_norm_size={groups} of Ling 2.5"
    _check_divides(parallel, groups, reason)


def _check_divides(parallel: ParallelConfig, whole: int, reason: str) -> None:
    ranks = parallel.tensor_parallel_size
    if whole % ranks:
        usable = [n for n in range(1, whole + 1) if whole % n == 0]
        raise InvalidInputError(f"tensor_parallel_size={ranks}", reason, f"Use one of {usable}.")
