"""DeepSeek-V4's grouped low-rank output projection, in the variants of :data:`VARIANTS`.

Shapes: T tokens, h query heads of this rank, D head width, G output groups, K channels of a
group, N low rank, H hidden size. Whatever the variant, a layer takes attention's output
``[T, h, D]``, which still carries the keys' rotation, and returns ``[T, H]``: this
tensor-parallel rank's term of a sum.
"""

from ascend_attention.layers.output_projection.exchange import (
    ExchangedOutputProjection,
    LatentParallelOutputProjection,
)
from ascend_attention.layers.output_projection.plain import OutputProjection
from ascend_attention.layers.output_projection.quantized import (
    QuantizedExchangedOutputProjection,
    QuantizedLatentParallelOutputProjection,
    QuantizedOutputProjection,
    QuantizedProducts,
)
from ascend_attention.layers.output_projection.variants import (
    VARIANTS,
    ProjectionChoice,
    ProjectionPart,
    ProjectionSettings,
    Variant,
    choose_projection,
)

__all__ = [
    "VARIANTS",
    "ExchangedOutputProjection",
    "LatentParallelOutputProjection",
    "OutputProjection",
    "ProjectionChoice",
    "ProjectionPart",
    "ProjectionSettings",
    "QuantizedExchangedOutputProjection",
    "QuantizedLatentParallelOutputProjection",
    "QuantizedOutputProjection",
    "QuantizedProducts",
    "Variant",
    "choose_projection",
]
