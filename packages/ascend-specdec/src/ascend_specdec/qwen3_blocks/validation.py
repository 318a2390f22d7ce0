"""What a block draft asks of the target and of the engine."""

from __future__ import annotations

from ascend_ops_core.errors import InvalidInputError
from vllm.config import VllmConfig

from ascend_specdec.qwen3_blocks.config import BlockDraftSpec

__all__ = ["check_pair"]


def check_pair(spec: BlockDraftSpec, vllm_config: VllmConfig) -> None:
    """Refuse a draft that was not trained for this target, or cannot be served beside it.

    Raises:
        InvalidInputError: names the value, the limit and the remedy.
    """
    target = vllm_config.model_config
    layers = target.hf_text_config.num_hidden_layers
    beyond = [one for one in spec.target_layers if not 0 <= one < layers]
    if beyond:
        raise InvalidInputError(
            f"target_layer_ids={list(spec.target_layers)}",
            f"the target has the layers 0 to {layers - 1}",
            "Take a draft that was trained for this target.",
        )
    width = target.get_hidden_size()
    if spec.target_hidden_size != width:
        raise InvalidInputError(
            f"a draft that reads hidden states of width {spec.target_hidden_size}",
            f"those of the target are {width} wide",
            "Take a draft that was trained for this target, or set target_hidden_size.",
        )
    vocabulary = target.get_vocab_size()
    if spec.vocab_size != vocabulary:
        raise InvalidInputError(
            f"a draft with vocab_size={spec.vocab_size}",
            f"the target has {vocabulary} tokens, and both must name them alike",
            "Take a draft that was trained for this target.",
        )
    if spec.draft_vocab_size > vocabulary:
        raise InvalidInputError(
            f"draft_vocab_size={spec.draft_vocab_size}",
            f"a draft's head has at most the target's {vocabulary} tokens",
            "Correct the draft's config.json.",
        )
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
    if target.uses_mrope:
        raise InvalidInputError(
            "a target with M-RoPE",
            "a block draft's positions follow each other",
            "Serve the target without speculative_config.",
        )
    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        raise InvalidInputError(
            f"pipeline_parallel_size={vllm_config.parallel_config.pipeline_parallel_size}",
            "a block draft reads hidden states of early layers, which the last stage does not have",
            "Set it to 1.",
        )
