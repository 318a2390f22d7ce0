"""What a sampler does to logits before it draws: each operator in a folder of its own."""

from __future__ import annotations

from ascend_ops_core.ops.sampling.counts import token_bin_counts_and_mask
from ascend_ops_core.ops.sampling.filters import top_k_top_p
from ascend_ops_core.ops.sampling.grammar import apply_grammar_bitmask
from ascend_ops_core.ops.sampling.logprobs import logprob_token_ids
from ascend_ops_core.ops.sampling.nans import num_nans
from ascend_ops_core.ops.sampling.penalties import apply_penalties

__all__ = [
    "apply_grammar_bitmask",
    "apply_penalties",
    "logprob_token_ids",
    "num_nans",
    "token_bin_counts_and_mask",
    "top_k_top_p",
]
