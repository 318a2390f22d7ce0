"""The gated delta rule in Triton: a loop over tokens for decode, some kernels for prompts.

Chunks are prepared independently of each other: sums of decays, products of keys and of queries,
the inverse of the triangular system, then what values and states are multiplied with. The last
kernel passes the state through the chunks of a request and has the outputs at once, so that no
state between two chunks reaches memory. Only the products differ by the kind of decay. The
formulas stand in :mod:`..chunked`.
"""

from __future__ import annotations

from ascend_attention.ops.gated_delta_rule.kernels.chunks import chunk_gated_delta_rule
from ascend_attention.ops.gated_delta_rule.kernels.recurrent import recurrent_gated_delta_rule

__all__ = ["chunk_gated_delta_rule", "recurrent_gated_delta_rule"]
