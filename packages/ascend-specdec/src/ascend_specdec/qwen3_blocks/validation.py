"""What a Qwen3 block draft asks of the target and of the engine."""

from __future__ import annotations

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.vllm.block_drafts import check_block_target
from vllm.config import VllmConfig

from ascend_specdec.qwen3_blocks.config import BlockDraftSpec

__all__ = ["check_pair"]


def check_pair(spec: BlockDraftSpec, vllm_config: VllmConfig) -> None:
    """Refuse a draft that was not trained for this target, or cannot be served beside it.

    Raises:
        InvalidInputError: names the value, the limit and the remedy.
    """
    check_block_target(spec, vllm_config)
    vocabulary = spec.vocab_size
    if spec.selector is not None and spec.draft_vocab_size != vocabulary:
        raise InvalidInputError(
            f"a DFlash2 draft with draft_vocab_size={spec.draft_vocab_size}",
            f"its code books name the target's {vocabulary} tokens",
            "Take a draft with a whole vocabulary.",
        )
    drafts = vllm_config.num_speculative_tokens
    if spec.convolution is not None and spec.convolution.taps > spec.queries(drafts):
        raise InvalidInputError(
            f"num_speculative_tokens={drafts}",
            f"a block of {spec.queries(drafts)} rows is shorter than the convolution's "
            f"{spec.convolution.taps} taps, with which the draft was not trained",
            f"Draft at least {drafts + spec.convolution.taps - spec.queries(drafts)} tokens.",
        )
