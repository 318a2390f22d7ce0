"""Puts the proposer of block drafts where vLLM's V1 runner looks for one.

Upstream symbols (0.27.1):

- ``vllm.v1.worker.gpu_model_runner.DFlashProposer``, which the runner makes where
  ``SpeculativeConfig.use_dflash()`` says so, and whose drafts it asks for.
- ``SpeculativeConfig.use_dflash`` and ``use_dspark``: a DSpark draft takes DFlash's way through the
  runner and reserves as many slots ahead; vLLM reserves one too few where its anchor predicts
  nothing.
- ``VllmConfig.use_v2_model_runner``, which is true for DSpark and for DFlash with several groups of
  caches. That runner needs Triton on CUDA.
"""

from __future__ import annotations

from typing import Any

__all__ = ["is_block_draft", "take_block_drafts", "use_block_proposer"]

_METHODS = ("dflash", "dspark")


def is_block_draft(vllm_config: Any) -> bool:
    """Whether the engine drafts in blocks."""
    speculative = vllm_config.speculative_config
    return speculative is not None and speculative.method in _METHODS


def take_block_drafts() -> None:
    """Let configs with block drafts run on the V1 runner; may be called repeatedly.

    Raises:
        AttributeError: vLLM has no such symbol any more.
    """
    from vllm import envs
    from vllm.config import SpeculativeConfig, VllmConfig

    def use_dflash(self: Any) -> bool:
        return self.method in _METHODS

    def use_dspark(self: Any) -> bool:
        return False

    for name, function in (("use_dflash", use_dflash), ("use_dspark", use_dspark)):
        getattr(SpeculativeConfig, name)
        setattr(SpeculativeConfig, name, function)
    upstream = VllmConfig.use_v2_model_runner.fget
    if getattr(upstream, "_of_block_drafts", False):
        return

    def use_v2_model_runner(self: Any) -> bool:
        if envs.VLLM_USE_V2_MODEL_RUNNER is None and is_block_draft(self):
            return False
        asked: bool = upstream(self)
        return asked

    vars(use_v2_model_runner)["_of_block_drafts"] = True
    VllmConfig.use_v2_model_runner = property(use_v2_model_runner)


def use_block_proposer() -> None:
    """Let V1 runners that are made from now on draft with ours; may be called repeatedly.

    Raises:
        AttributeError: vLLM's runner makes no such proposer any more.
    """
    from vllm.v1.worker import gpu_model_runner

    from ascend_specdec.vllm.block_proposer import BlockDraftProposer

    assert gpu_model_runner.DFlashProposer is not None
    gpu_model_runner.DFlashProposer = BlockDraftProposer
