"""From the scheme in which a checkpoint stores experts to their quantisation here."""

from __future__ import annotations

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.quantized_weights import Codes, Role, Rows, Scheme

from ascend_fused_moe.quant_params import MoEQuantParams, QuantMode, build_quant_params

__all__ = ["quant_of"]

# By codes, rows and columns that share a scale: with float rows, and with quantised ones.
_MODES = {
    (Codes.INT8, 1, 0): (QuantMode.W8A16, QuantMode.W8A8),
    (Codes.INT4, 1, 0): (QuantMode.W4A16, QuantMode.W4A8),
    (Codes.E4M3, 128, 128): (QuantMode.FP8_A16, QuantMode.FP8_BLOCK),
    (Codes.E4M3, 1, 32): (QuantMode.MXFP8_A16, QuantMode.MXFP8),
    (Codes.E2M1, 1, 32): (QuantMode.W4A16_MXFP, QuantMode.W4A8_MXFP),
}


def quant_of(scheme: Scheme | None, *, float_rows: bool) -> MoEQuantParams:
    """The quantisation of experts that a checkpoint stores in a scheme.

    Args:
        scheme: of all the experts' weights; None for the model's dtype.
        float_rows: rows stay as they are, as on CPUs, where results are then those of the
            dequantised weights.

    Raises:
        InvalidInputError: experts are not computed in such a scheme.
    """
    if scheme is None:
        return build_quant_params(QuantMode.NONE)
    form = scheme.format
    modes = _MODES.get((form.codes, form.rows, form.columns))
    if modes is None or scheme.tensor(Role.DEQUANTIZATION_SCALE) is not None:
        raise InvalidInputError(
            f"routed experts stored as {scheme.name}",
            "experts are computed with int8 or int4 weights scaled by channel, in fp8 blocks of "
            "128 x 128, in MXFP8 and in MXFP4",
            "Use a checkpoint in one of these.",
        )
    return build_quant_params(modes[0 if float_rows or scheme.rows is Rows.FLOAT else 1])
