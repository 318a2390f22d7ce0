"""What one pass through the experts' networks is given."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from ascend_ops_core.errors import InvalidInputError

from ascend_fused_moe.group_list import GroupList
from ascend_fused_moe.mlp.activation import Activation
from ascend_fused_moe.mlp.lora import RowsLoRA
from ascend_fused_moe.ops.grouped_mlp.formats import FORMATS, check_rows, check_weight
from ascend_fused_moe.quant_params import MoEQuantParams

__all__ = ["MoEMlpComputeInput", "MoEWeights", "build_mlp_compute_input"]


@dataclass(frozen=True)
class MoEWeights:
    """The stacked weights of a rank's experts, stored as the layer's quantisation says.

    Attributes:
        w13: ``[E, 2 * I, H]``, gate rows before up rows (alternating for ``swiglu_oai``), or
            packed.
        w2: ``[E, H, I]``, or packed.
        w13_scale: of quantised weights, else None.
        w2_scale: of quantised weights, else None.
        w13_bias: ``[E, 2 * I]``, any float dtype, or None.
        w2_bias: ``[E, H]``, any float dtype, or None. With tensor parallelism only one rank of a
            group may have it, since results are summed.
        w13_nz: ``[E, H, 2 * I]`` int8 in FRACTAL_NZ, for the operator that fuses product,
            activation and quantisation on NPUs, or None.
    """

    w13: torch.Tensor
    w2: torch.Tensor
    w13_scale: torch.Tensor | None = None
    w2_scale: torch.Tensor | None = None
    w13_bias: torch.Tensor | None = None
    w2_bias: torch.Tensor | None = None
    w13_nz: torch.Tensor | None = None

    @property
    def experts(self) -> int:
        """Experts, or places for them."""
        return self.w13.shape[0]

    def sizes(self, quant: MoEQuantParams) -> tuple[int, int]:
        """``H`` and ``I``, read from the weights.

        Raises:
            InvalidInputError: weights, scales or biases that do not belong together.
        """
        per_byte = FORMATS[quant.weights].per_byte
        shaped = self.w13.dim() == self.w2.dim() == 3
        hidden = self.w13.shape[2] * per_byte if shaped else 0
        inter = self.w2.shape[2] * per_byte if shaped else 0
        experts = self.experts
        if (
            not shaped
            or self.w13.shape[:2] != (experts, 2 * inter)
            or self.w2.shape[:2] != (experts, hidden)
        ):
            raise InvalidInputError(
                f"w13 {list(self.w13.shape)} and w2 {list(self.w2.shape)} of {quant.weights}",
                "expected [E, 2I, H] and [E, H, I]"
                + (", two values in a byte of the last axis" if per_byte == 2 else ""),
                "Check the layout of the stacked expert weights.",
            )
        self._check_scales(quant, hidden, inter)
        for name, bias, outputs in (
            ("w13_bias", self.w13_bias, 2 * inter),
            ("w2_bias", self.w2_bias, hidden),
        ):
            if bias is not None and bias.shape != (experts, outputs):
                raise InvalidInputError(
                    f"{name} of shape {list(bias.shape)}",
                    f"it is [{experts}, {outputs}]",
                    "Pass one row of biases for each expert.",
                )
        return hidden, inter

    def _check_scales(self, quant: MoEQuantParams, hidden: int, inter: int) -> None:
        for name, weight, scale, columns in (
            ("w13", self.w13, self.w13_scale, hidden),
            ("w2", self.w2, self.w2_scale, inter),
        ):
            if not quant.is_quant:
                if scale is not None or weight.dtype not in FORMATS["float"].dtypes:
                    state = "with a scale" if scale is not None else f"of {weight.dtype}"
                    raise InvalidInputError(
                        f"{name} {state} in mode 'none'",
                        "weights that are not quantised are float and have no scale",
                        "Name the quantisation.",
                    )
            elif scale is None:
                raise InvalidInputError(
                    f"{name} without a scale in mode {quant.mode.value!r}",
                    "quantised weights have one",
                    f"Load {name}_scale.",
                )
            else:
                check_weight(weight, scale, quant.weights, columns)
                self._check_shares(name, scale, quant, columns)

    def _check_shares(
        self, name: str, scale: torch.Tensor, quant: MoEQuantParams, columns: int
    ) -> None:
        if quant.weights != "int4":
            return
        size = quant.group_size
        wanted = None if size is None else columns // size
        given = scale.shape[2] if scale.dim() == 3 else None
        if given != wanted or (size is not None and columns % size):
            raise InvalidInputError(
                f"{name}_scale of shape {list(scale.shape)} for {columns} columns",
                "one scale for each channel" if size is None else f"group_size is {size}",
                "Correct group_size in the checkpoint's quantisation config.",
            )


@dataclass(frozen=True)
class MoEMlpComputeInput:
    """Rows in the order of their experts, and all that their pass through the networks needs.

    Use :func:`build_mlp_compute_input`, which checks it.

    Attributes:
        rows: ``[R, H]`` float, or quantised to the mode's format; ``R`` may be 0.
        rows_scale: of quantised rows, else None.
        group_list: rows of each expert; what lies behind them holds anything.
        weights: of the experts.
        quant: the mode.
        activation: between the products.
        dtype: of the result, and of what stays float in between.
        lora: adapters of the rows, or None.
    """

    rows: torch.Tensor
    rows_scale: torch.Tensor | None
    group_list: GroupList
    weights: MoEWeights
    quant: MoEQuantParams = field(default_factory=MoEQuantParams)
    activation: Activation = field(default_factory=Activation)
    dtype: torch.dtype = torch.bfloat16
    lora: RowsLoRA | None = None


def build_mlp_compute_input(
    rows: torch.Tensor,
    group_list: GroupList,
    weights: MoEWeights,
    *,
    rows_scale: torch.Tensor | None = None,
    quant: MoEQuantParams | None = None,
    activation: Activation | None = None,
    dtype: torch.dtype | None = None,
    lora: RowsLoRA | None = None,
) -> MoEMlpComputeInput:
    """Check everything that can be checked without waiting for a device.

    Args:
        rows: ``[R, H]`` float, or quantised (a dispatcher may have done it) with ``rows_scale``.
        group_list: of as many groups as there are experts, with at most ``R`` rows together.
        weights: of the experts.
        rows_scale: of quantised rows.
        quant: None for weights that are not quantised.
        activation: None for SwiGLU without a limit.
        dtype: of the result; None takes that of float rows.
        lora: adapters of the rows; None for none.

    Raises:
        InvalidInputError: rows, weights or groups that do not belong together, named with both
            sides; quantised rows without ``dtype``, or with adapters.
    """
    quant = quant or MoEQuantParams()
    hidden, inter = weights.sizes(quant)
    if rows_scale is not None:
        rows_scale = check_rows(rows, rows_scale, quant.rows, hidden)
    else:
        check_rows(rows, None, "float", hidden)
    if dtype is None:
        if rows_scale is not None:
            raise InvalidInputError(
                f"rows of {rows.dtype} without a dtype for the result",
                "quantised rows do not tell it",
                "Pass the model's dtype.",
            )
        dtype = rows.dtype
    if not quant.is_quant and not rows.dtype == weights.w13.dtype == weights.w2.dtype == dtype:
        raise InvalidInputError(
            f"rows of {rows.dtype}, weights of {weights.w13.dtype} and {weights.w2.dtype}, "
            f"results of {dtype}",
            "they are one dtype where nothing is quantised",
            "Convert them.",
        )
    _check_groups(group_list, weights.experts, rows)
    if lora is not None:
        lora.context.check(hidden, inter, weights.experts)
        if rows_scale is not None or lora.adapters.shape != rows.shape[:1]:
            raise InvalidInputError(
                f"adapters {list(lora.adapters.shape)} of {rows.dtype} rows {list(rows.shape)}",
                "each row has one, and is not quantised before",
                "Dispatch float rows together with their adapters.",
            )
    return MoEMlpComputeInput(
        rows, rows_scale, group_list, weights, quant, activation or Activation(), dtype, lora
    )


def _check_groups(group_list: GroupList, experts: int, rows: torch.Tensor) -> None:
    if group_list.values.device.type == "cpu" and group_list.experts:
        used = int(group_list.cumulative().values[-1])
        group_list.check(min(used, rows.shape[0]), experts)
    else:
        group_list.check(rows.shape[0], experts)
