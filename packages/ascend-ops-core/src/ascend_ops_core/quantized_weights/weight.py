"""A quantised weight as a module: what a rank holds of it, and its product with tokens."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import nn

from ascend_ops_core.devices import DeviceFacts, current_facts
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.dequantized_linear import dequantized_linear, dequantized_rows
from ascend_ops_core.ops.int8_linear import int8_linear
from ascend_ops_core.ops.linear import grouped_linear, linear
from ascend_ops_core.ops.mx_linear import mxfp8_grouped_linear
from ascend_ops_core.ops.quantization import dynamic_quantize, mxfp8_quantize
from ascend_ops_core.quantized_weights.formats import Codes, Role, Rows, Scheme
from ascend_ops_core.quantized_weights.layout import WeightLayout, WeightPart

__all__ = ["QuantizedWeight", "Weight", "check_family", "project", "project_groups"]

logger = logging.getLogger(__name__)

_MX_COLUMNS, _MX_PAIR = 32, 64
_DEQUANTIZED_VALUES = 1 << 20
_reported: set[str] = set()


class QuantizedWeight(nn.Module):
    """A weight ``[N, K]`` in the form of its checkpoint.

    A checkpoint fills the parameters by the placements of :attr:`layout`; :meth:`finish` follows.

    Args:
        scheme: of all parts.
        parts: the checkpoint's layers that lie below each other in it.

    Attributes:
        layout: where which tensor goes.
        weight: the values, see :attr:`WeightLayout.values_shape`.
        scale: the scales, float32 or uint8 for powers of two.
        scale_rows: ``[N]`` int32 rows of ``scale``, or None where each row has its own.
    """

    scale_rows: torch.Tensor | None

    def __init__(self, scheme: Scheme, parts: Sequence[WeightPart]) -> None:
        super().__init__()
        self.layout = WeightLayout(scheme, parts)
        form = scheme.format
        self.weight = _parameter(self.layout.values_shape, form.codes.dtype)
        self.scale = _parameter(self.layout.scale_shape, form.scale_dtype)
        self.register_buffer("scale_rows", self.layout.scale_rows(), persistent=False)
        if scheme.tensor(Role.INPUT_SCALE) is not None:
            self.input_scale = _parameter((len(self.layout.parts),), torch.float32)
        self._mx_scale: torch.Tensor | None = None
        self._finished = scheme.tensor(Role.DEQUANTIZATION_SCALE) is None

    @property
    def scheme(self) -> Scheme:
        """How the checkpoint stores it."""
        return self.layout.scheme

    @property
    def shape(self) -> tuple[int, int]:
        """``(N, K)``."""
        return self.layout.rows, self.layout.width

    @property
    def dtype(self) -> torch.dtype:
        """Of the values as they are held."""
        return self.weight.dtype

    def finish(self) -> None:
        """Bring what was loaded into the form of the product, once; a second call does nothing."""
        if self._finished:
            return
        first = 0
        for index, part in enumerate(self.layout.parts):
            rows = part.own_rows[1] - part.own_rows[0]
            # The checkpoint has the product of both scales.
            self.scale.data[first : first + rows] /= self.input_scale[index]
            first += rows
        self._finished = True

    def dequantize(self, out: torch.Tensor) -> None:
        """Write what the weight stands for, rounded once, with few rows in float32 at a time.

        Args:
            out: ``[N, K]`` of any float dtype, on any device.
        """
        form = self.scheme.format
        step = max(1, _DEQUANTIZED_VALUES // self.layout.width)
        for start in range(0, self.layout.rows, step):
            rows = slice(start, start + step)
            scale = (
                self.scale[rows] if self.scale_rows is None else self.scale[self.scale_rows[rows]]
            )
            out[rows].copy_(
                dequantized_rows(
                    self.weight[rows],
                    scale,
                    form.codes,
                    columns=form.columns,
                    first_column=self.layout.first_column,
                )
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, N]`` from ``x [T, K]``, in its dtype.

        On a CPU tokens stay as they are. On an NPU they are quantised where its products take both
        sides quantised; elsewhere the weight becomes float there, tile by tile, which is slower and
        logged once.
        """
        return self._product(x, slice(None))

    def groups(self, x: torch.Tensor) -> torch.Tensor:
        """A product for each group of rows: ``[T, G, N / G]`` from ``x [T, G, K]``."""
        count = x.shape[1]
        rows = self.layout.rows // count
        parts = [
            self._product(x[:, g].contiguous(), slice(g * rows, (g + 1) * rows))
            for g in range(count)
        ]
        return torch.stack(parts, dim=1)

    def _product(self, x: torch.Tensor, rows: slice) -> torch.Tensor:
        if not x.is_cpu:
            facts = current_facts()
            if self.scheme.rows in (Rows.INT8_DYNAMIC, Rows.INT8_STATIC) and (
                self.scheme.format.codes is Codes.INT8
            ):
                values, scale = dynamic_quantize(x)
                own = self.scale[rows].reshape(-1)
                return int8_linear(values, scale, self.weight[rows], own, x.dtype)
            reason = self._no_mxfp8(x, facts)
            if not reason:
                values, scale = mxfp8_quantize(x.unsqueeze(1))
                weight, own = self.weight[rows].unsqueeze(0), self._mx(rows).unsqueeze(0)
                return mxfp8_grouped_linear(values, scale, weight, own, x.dtype).squeeze(1)
            _report(f"{self.scheme.name} weights on {facts.family}", reason)
        scale_rows = None if self.scale_rows is None else self.scale_rows[rows]
        return dequantized_linear(
            x,
            self.weight[rows],
            self.scale if scale_rows is not None else self.scale[rows],
            self.scheme.format.codes,
            columns=self.scheme.format.columns,
            scale_rows=scale_rows,
            first_column=self.layout.first_column,
        )

    def _no_mxfp8(self, x: torch.Tensor, facts: DeviceFacts) -> str:
        """Why the weight cannot be multiplied as MXFP8, which its blocks may be in part of."""
        form = self.scheme.format
        if facts.family != "A5":
            return f"{facts.family} has no product of 8-bit floats"
        if form.codes is not Codes.E4M3 or not form.powers:
            return "the product of 8-bit floats wants powers of two as scales"
        if form.columns % _MX_COLUMNS or self.layout.first_column % _MX_COLUMNS:
            return f"blocks of {form.columns} columns are not made of {_MX_COLUMNS} columns each"
        if self.layout.width % _MX_PAIR or x.dtype == torch.float32:
            return f"{self.layout.width} columns in {x.dtype}, not {_MX_PAIR} each in 16 bits"
        return ""

    def _mx(self, rows: slice) -> torch.Tensor:
        """The powers of two of 32 columns of each row, the same values more often."""
        if self._mx_scale is None:
            scale = self.scale if self.scale_rows is None else self.scale[self.scale_rows.long()]
            first, share = self.layout.first_column, self.scheme.format.columns
            starts = torch.arange(0, self.layout.width, _MX_COLUMNS, device=scale.device) + first
            self._mx_scale = scale[:, starts // share].contiguous()
        return self._mx_scale[rows]


Weight = torch.Tensor | QuantizedWeight
"""A weight of a model, in its dtype or as its checkpoint stores it."""


def project(x: torch.Tensor, weight: Weight) -> torch.Tensor:
    """``x @ weight.T``: ``[T, N]`` from ``x [T, K]``."""
    if isinstance(weight, torch.Tensor):
        return linear(x, weight)
    product: torch.Tensor = weight(x)
    return product


def project_groups(x: torch.Tensor, weight: Weight) -> torch.Tensor:
    """A product for each group: ``[T, G, N]`` from ``x [T, G, K]``.

    Args:
        x: ``[T, G, K]``.
        weight: ``[G, N, K]``, or quantised ``[G * N, K]``.
    """
    if isinstance(weight, torch.Tensor):
        return grouped_linear(x, weight)
    return weight.groups(x)


def check_family(scheme: Scheme, facts: DeviceFacts) -> None:
    """Refuse a device family that cannot hold the values of a scheme.

    Raises:
        InvalidInputError: values are float8, and the family has none.
    """
    codes = scheme.format.codes
    if codes is Codes.E4M3 and torch.float8_e4m3fn not in (facts.dtypes.value or ()):
        raise InvalidInputError(
            f"{scheme.name} weights on {facts.family}",
            f"{facts.family} has no float8",
            "Use A5, or a checkpoint with int8 weights (ModelSlim's W8A8).",
        )


def _parameter(shape: tuple[int, ...], dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)


def _report(what: str, reason: str) -> None:
    if what not in _reported:
        _reported.add(what)
        logger.warning("%s are multiplied in float, tile by tile: %s", what, reason)
