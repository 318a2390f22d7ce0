"""Repetition, frequency and presence penalties in one pass."""

from __future__ import annotations

import torch

from ascend_ops_core.checks import FLOATS, require_dtype, require_shape
from ascend_ops_core.registry import declare

__all__ = ["apply_penalties"]


def apply_penalties(
    logits: torch.Tensor,
    prompt_mask: torch.Tensor,
    output_counts: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> None:
    """Penalise what the prompt and the output already hold, in place.

    A token of the prompt or the output has its logit divided by ``repetition`` if it is positive
    and multiplied by it otherwise; then ``frequency`` times its count in the output is
    subtracted, and ``presence`` if that count is not 0 (the OpenAI API's definition; vLLM:
    ``model_executor/layers/utils.py: apply_penalties``).

    Args:
        logits: ``[B, V]``, any float dtype, any strides; written. ``B`` may be 0.
        prompt_mask: ``[B, V]`` bool, true for tokens of the prompt.
        output_counts: ``[B, V]`` int32, see
            :func:`~ascend_ops_core.ops.sampling.token_bin_counts_and_mask`.
        repetition: ``[B]`` float32, above 0; 1 changes nothing.
        frequency: ``[B]`` float32; 0 changes nothing.
        presence: ``[B]`` float32; 0 changes nothing.

    Raises:
        InvalidInputError: another shape or dtype; nothing was written then.
    """
    rows, vocabulary = logits.shape if logits.dim() == 2 else (None, None)
    require_shape("logits", logits, rows, vocabulary)
    require_dtype("logits", logits, FLOATS)
    require_shape("prompt_mask", prompt_mask, rows, vocabulary)
    require_dtype("prompt_mask", prompt_mask, (torch.bool,))
    require_shape("output_counts", output_counts, rows, vocabulary)
    require_dtype("output_counts", output_counts, (torch.int32,))
    for name, penalty in (
        ("repetition", repetition),
        ("frequency", frequency),
        ("presence", presence),
    ):
        require_shape(name, penalty, rows)
        require_dtype(name, penalty, (torch.float32,))
    _APPLY_PENALTIES(logits, prompt_mask, output_counts, repetition, frequency, presence)


_APPLY_PENALTIES = declare(
    __name__,
    "apply_penalties(Tensor(a!) logits, Tensor prompt_mask, Tensor output_counts, "
    "Tensor repetition, Tensor frequency, Tensor presence) -> ()",
    npu=("triton", "torch"),
    fake=lambda *args: None,
)
