"""Tiny checkpoints and the transformers oracle that the tests compare with.

Needs transformers and safetensors (extra `test`); never imports vLLM, but for `attention_layers`,
which is imported by its own name.
"""

from ascend_ops_core.testing.language_models import (
    FLOAT32_LOGITS_ATOL,
    SMALLEST_SELECTION_GAP,
    random_prompt,
)

from ascend_models_deepseek.testing.mtp_oracle import MtpOracle, Speculation
from ascend_models_deepseek.testing.oracle import (
    AmbiguousPromptError,
    Greedy,
    Oracle,
    selection_matters,
)
from ascend_models_deepseek.testing.tiny_v4 import SPECS, TinyV4Spec, write_checkpoint
from ascend_models_deepseek.testing.tolerances import (
    BFLOAT16_MEAN_RATIO,
    BFLOAT16_MEAN_SLACK,
    EIGHT_BIT_MEAN_RATIO,
    MEAN_LOGITS_OF_FAMILY_ROWS,
    MEAN_LOGITS_OF_KEYS,
    MXFP8_OVER_BFLOAT16,
    SELF_CONSISTENCY_ATOL,
)

__all__ = [
    "BFLOAT16_MEAN_RATIO",
    "BFLOAT16_MEAN_SLACK",
    "EIGHT_BIT_MEAN_RATIO",
    "FLOAT32_LOGITS_ATOL",
    "MEAN_LOGITS_OF_FAMILY_ROWS",
    "MEAN_LOGITS_OF_KEYS",
    "MXFP8_OVER_BFLOAT16",
    "SELF_CONSISTENCY_ATOL",
    "SMALLEST_SELECTION_GAP",
    "SPECS",
    "AmbiguousPromptError",
    "Greedy",
    "MtpOracle",
    "Oracle",
    "Speculation",
    "TinyV4Spec",
    "random_prompt",
    "selection_matters",
    "write_checkpoint",
]
