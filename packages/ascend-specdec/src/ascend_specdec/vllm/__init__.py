"""Adaptors to vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig

__all__ = [
    "check_speculation",
    "finish_runner",
    "prepare_runner",
    "register",
    "register_drafts",
]


def register() -> None:
    """Let vLLM's CPU runner verify drafts by this package's operators."""
    from ascend_specdec.vllm.kernels import replace_cpu_kernels

    replace_cpu_kernels()


def register_drafts() -> None:
    """Register draft models, proposers, and the watch over acceptance; on any device.

    May be called any number of times.
    """
    from vllm.model_executor.models import ModelRegistry

    from ascend_specdec.vllm.acceptance import watch_acceptance
    from ascend_specdec.vllm.block_hooks import take_block_drafts
    from ascend_specdec.vllm.hidden_states import register_connector
    from ascend_specdec.vllm.proposers import replace_proposers

    take_block_drafts()
    module = "ascend_specdec.registry"
    for name, served in (
        ("DFlashDraftModel", "AscendDFlashQwen3ForCausalLM"),
        ("DFlash2DraftModel", "DFlash2Qwen3ForCausalLM"),
        ("DFlash2Qwen3ForCausalLM", "DFlash2Qwen3ForCausalLM"),
        ("Qwen3DSparkModel", "AscendQwen3DSparkForCausalLM"),
        ("Eagle3LlamaForCausalLM", "AscendEagle3LlamaForCausalLM"),
        ("LlamaForCausalLMEagle3", "AscendEagle3LlamaForCausalLM"),
        ("LlamaForCausalLMVwnEagle3", "Eagle3VwnLlamaForCausalLM"),
    ):
        ModelRegistry.register_model(name, f"{module}:{served}")
    replace_proposers()
    register_connector()
    watch_acceptance()


def check_speculation(vllm_config: VllmConfig) -> None:
    """See :func:`ascend_specdec.vllm.config.check_speculation`."""
    from ascend_specdec.vllm import config

    config.check_speculation(vllm_config)


def prepare_runner() -> None:
    """To be called before a V1 runner is made."""
    from ascend_specdec.vllm.block_hooks import use_block_proposer
    from ascend_specdec.vllm.seeds import keep_seeds

    use_block_proposer()
    keep_seeds()


def finish_runner(runner: Any) -> None:
    """To be called when a V1 runner has been made."""
    from ascend_specdec.vllm.block_verification import use_block_verification
    from ascend_specdec.vllm.chunked_prompts import show_next_prompt_tokens

    use_block_verification(runner)
    show_next_prompt_tokens(runner)
