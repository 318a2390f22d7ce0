"""vLLM's own models with layers of ours: what cannot be served is refused before workers start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ascend_ops_core.errors import InvalidInputError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

__all__ = ["check_vllm_models"]

_BAILING = "BailingMoeV2_5ForCausalLM"


def check_vllm_models(vllm_config: VllmConfig) -> None:
    """Refuse what would end in a worker, where vLLM names no reason.

    Raises:
        InvalidInputError: ranks that cannot share the heads of Gated DeltaNet, or a model whose
            other layers have no backend.
    """
    model = vllm_config.model_config
    if model is None:
        return
    if _BAILING in (getattr(model.hf_config, "architectures", None) or ()):
        raise InvalidInputError(
            f"a model of architecture {_BAILING}",
            "its lightning attention is ours, but its other layers are vLLM's latent attention, "
            "which has a backend neither on a CPU nor on an NPU",
            "Serve another model; the layer alone is in ascend_attention.vllm.linear.bailing.",
        )
    heads = getattr(model.hf_text_config, "linear_num_key_heads", None)
    if not isinstance(heads, int):
        return
    ranks = vllm_config.parallel_config.tensor_parallel_size
    if heads % ranks:
        usable = [n for n in range(1, heads + 1) if heads % n == 0]
        raise InvalidInputError(
            f"tensor_parallel_size={ranks}",
            f"it must divide the linear_num_key_heads={heads} of Gated DeltaNet",
            f"Use one of {usable}.",
        )
