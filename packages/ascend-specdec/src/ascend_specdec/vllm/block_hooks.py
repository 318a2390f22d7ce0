"""Puts the proposer of block drafts where vLLM's V1 runner looks for one.

Upstream symbols (0.27.1):

- ``vllm.v1.worker.gpu_model_runner.DFlashProposer``, which the runner makes where
  ``SpeculativeConfig.use_dflash()`` says so, and whose drafts it asks for.
- ``SpeculativeConfig.use_dflash`` and ``use_dspark``: a DSpark draft takes DFlash's way through the
  runner and reserves as many slots ahead; vLLM reserves one too few where its anchor predicts
  nothing.
- ``SpeculativeConfig.hf_config_override``, which the draft's config passes: vLLM then refuses fewer
  drafts than ``dspark_block_size``, whose blocks would be shorter than in training. Here a block
  has its length of training, and the drafts are its first.
- ``Scheduler.__init__`` of ``vllm.v1.core.sched.scheduler``, which reserves slots for as many rows
  as there are drafts.
- ``VllmConfig.use_v2_model_runner``, which is true for DSpark and for DFlash with several groups of
  caches. That runner needs Triton on CUDA.
"""

from __future__ import annotations

from typing import Any

from ascend_ops_core.layers.block_drafts import TRAINED_BLOCK

__all__ = ["draft_config", "is_block_draft", "take_block_drafts", "use_block_proposer"]

_METHODS = ("dflash", "dspark")
_upstream: dict[str, Any] = {}


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
    if SpeculativeConfig.hf_config_override is not draft_config:
        _upstream["hf_config_override"] = SpeculativeConfig.hf_config_override
        SpeculativeConfig.hf_config_override = staticmethod(draft_config)
    _reserve_whole_blocks()
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


def draft_config(config: Any) -> Any:
    """The config of a draft as vLLM reads it, which does not learn how long its blocks are.

    A function of this module, since vLLM sends it to other processes by its name.

    Args:
        config: of transformers, changed in place.
    """
    found = _upstream["hf_config_override"](config)
    block = getattr(found, "dspark_block_size", None)
    # Other drafts than DeepSeek-V4's are left to vLLM, should one have that key.
    if block is not None and getattr(found, "dspark_target_layer_ids", None):
        setattr(found, TRAINED_BLOCK, block)
        found.dspark_block_size = None
    return found


def _reserve_whole_blocks() -> None:
    """Let the scheduler reserve slots for all rows of a block, of which there may be more."""
    from vllm.v1.core.sched.scheduler import Scheduler

    make = Scheduler.__init__
    if getattr(make, "_of_block_drafts", False):
        return

    def make_with_whole_blocks(self: Any, vllm_config: Any, *given: Any, **named: Any) -> None:
        make(self, vllm_config, *given, **named)
        if not is_block_draft(vllm_config):
            return
        draft = vllm_config.speculative_config.draft_model_config.hf_config
        # One more than drafts, where the anchor predicts nothing.
        rows = (getattr(draft, TRAINED_BLOCK, None) or 0) + 1
        self.num_lookahead_tokens = max(self.num_lookahead_tokens, rows)

    vars(make_with_whole_blocks)["_of_block_drafts"] = True
    Scheduler.__init__ = make_with_whole_blocks


def use_block_proposer() -> None:
    """Let V1 runners that are made from now on draft with ours; may be called repeatedly.

    Raises:
        AttributeError: vLLM's runner makes no such proposer any more.
    """
    from vllm.v1.worker import gpu_model_runner

    from ascend_specdec.vllm.block_proposer import BlockDraftProposer

    assert gpu_model_runner.DFlashProposer is not None
    gpu_model_runner.DFlashProposer = BlockDraftProposer
