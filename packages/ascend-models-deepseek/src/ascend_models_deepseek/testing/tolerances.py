"""The numeric bars that every comparison with the oracle uses, in one place.

The figures are absolute differences of raw logits. The tiny checkpoints have logits with a standard
deviation of about one, and transformers agrees with itself (cached, uncached, chunked) to 4e-6.
"""

SELF_CONSISTENCY_ATOL = 2e-5
"""Largest allowed difference between two float32 ways of running the oracle itself."""

BFLOAT16_MEAN_RATIO = 1.5
"""A bf16 engine's mean |logit - float32 oracle| over that of transformers in bf16, at most.

Both run the same bf16 weights; the float32 oracle runs those weights exactly. A token's expert or
compressed entry can flip under bf16 rounding, so single logits have no useful bound while the mean
over a few hundred positions does.
"""

BFLOAT16_MEAN_SLACK = 5e-3
"""Added to the bound above, so that a lucky transformers run does not make the bar meaningless."""

MXFP8_OVER_BFLOAT16 = 6.0
"""A bf16 engine's mean |logit - float32 oracle| with output projections in MXFP8, over that of
transformers in bf16, at most. A value of E4M3 keeps 4 significant bits and one of bfloat16 8, but
two of a layer's products have it; measured is 3.1.
"""

MEAN_LOGITS_OF_FAMILY_ROWS = {"A3": 4e-3, "A5": 3e-2}
"""Mean |logit - float32 oracle| of a float32 engine whose caches hold a device family's rows.

On A3 (and A2) bfloat16 key-value rows and int8 indexer keys, on A5 float8_e4m3fn for both; a
selection can flip, so that single logits have no useful bound. Measured over 40 tokens of the tiny
checkpoints: 2.0e-3 and 1.0e-2, and 2.0e-3 with drafts on A3.
"""

MEAN_LOGITS_OF_KEYS = {"A3": 2.5e-2, "A5": 1.2e-1}
"""Mean distance of logits with 8-bit indexer keys in DeepSeek-V3.2, by device family.

A token that is selected for another changes all of a layer's attention. Twice what was measured
(0.012 and 0.060).
"""
