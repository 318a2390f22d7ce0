"""What every block draft asks of the target and of the engine."""

from __future__ import annotations

from vllm.config import VllmConfig

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.layers.block_drafts import BlockShape

__all__ = ["check_block_target", "read_target_layers"]


def check_block_target(shape: BlockShape, vllm_config: VllmConfig) -> None:
    """Refuse a draft that was not trained for this target, or cannot be served beside it.

    Raises:
        InvalidInputError: names the value, the limit and the remedy.
    """
    target = vllm_config.model_config
    layers = target.hf_text_config.num_hidden_layers
    beyond = [one for one in shape.target_layers if not 0 <= one < layers]
    if beyond:
        raise InvalidInputError(
            f"target_layer_ids={list(shape.target_layers)}",
            f"the target has the layers 0 to {layers - 1}",
            "Take a draft that was trained for this target.",
        )
    width = target.get_hidden_size()
    if shape.target_hidden_size != width:
        raise InvalidInputError(
            f"a draft that reads hidden states of width {shape.target_hidden_size}",
            f"those of the target are {width} wide",
            "Take a draft that was trained for this target, or set target_hidden_size.",
        )
    vocabulary = target.get_vocab_size()
    if shape.vocab_size != vocabulary:
        raise InvalidInputError(
            f"a draft with vocab_size={shape.vocab_size}",
            f"the target has {vocabulary} tokens, and both must name them alike",
            "Take a draft that was trained for this target.",
        )
    if shape.draft_vocab_size > vocabulary:
        raise InvalidInputError(
            f"draft_vocab_size={shape.draft_vocab_size}",
            f"a draft's head has at most the target's {vocabulary} tokens",
            "Correct the draft's config.json.",
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


def read_target_layers(shape: BlockShape, vllm_config: VllmConfig) -> None:
    """Let the runner take the hidden states that a draft reads.

    vLLM's V1 runner reads the layers from ``eagle_aux_hidden_state_layer_ids`` of the draft's
    config alone, where a number names what is in front of the layer.
    """
    speculative = vllm_config.speculative_config
    assert speculative is not None
    config = speculative.draft_model_config.hf_config
    # The output of layer i is the input of layer i + 1.
    config.eagle_aux_hidden_state_layer_ids = [one + 1 for one in shape.target_layers]
