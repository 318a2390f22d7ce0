"""What the weights of routed experts are, for each quantisation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.linear import linear
from ascend_ops_core.ops.quantization.blocks import COLUMNS
from ascend_ops_core.ops.quantization.mx import BLOCK
from torch import nn

from ascend_fused_moe.group_list import GroupList, GroupListKind
from ascend_fused_moe.mlp import (
    Activation,
    MoEWeights,
    RowsLoRA,
    build_mlp_compute_input,
    is_clipped_swiglu,
    is_plain_swiglu,
    unified_apply_mlp,
)
from ascend_fused_moe.ops.experts import fused_experts
from ascend_fused_moe.ops.grouped_mlp.formats import FORMATS
from ascend_fused_moe.permutation import permute, unpermute
from ascend_fused_moe.quant_params import MoEQuantParams, QuantMode

__all__ = [
    "AscendQuantizedFusedMoEMethod",
    "AscendUnquantizedFusedMoEMethod",
    "ExpertSizes",
    "method_of",
]


@dataclass(frozen=True)
class ExpertSizes:
    """Sizes of a rank's experts.

    Attributes:
        places: room for experts on this rank.
        hidden: ``H``.
        inter: ``I`` of one tensor-parallel slice.
        dtype: of the model: of weights that are not quantised, of biases, and of results.
        bias: both products have one.
    """

    places: int
    hidden: int
    inter: int
    dtype: torch.dtype
    bias: bool = False


class AscendUnquantizedFusedMoEMethod:
    """Experts whose weights are in the model's dtype."""

    quant = MoEQuantParams()

    @property
    def is_monolithic(self) -> bool:
        """Whether one call routes, dispatches and computes; here it only computes."""
        return False

    @property
    def unit(self) -> int:
        """Channels of ``I`` that a tensor-parallel slice must not cut."""
        return 1

    def create_weights(self, layer: nn.Module, sizes: ExpertSizes) -> None:
        """Give a layer its parameters, which hold nothing yet.

        Args:
            layer: gets ``w13 [E, 2 * I, H]``, ``w2 [E, H, I]`` and, with biases, ``w13_bias
                [E, 2 * I]`` and ``w2_bias [E, H]``.
            sizes: of the experts.
        """
        self._create(layer, "w13", (sizes.places, 2 * sizes.inter, sizes.hidden), sizes)
        self._create(layer, "w2", (sizes.places, sizes.hidden, sizes.inter), sizes)
        if sizes.bias:
            _register(layer, "w13_bias", (sizes.places, 2 * sizes.inter), sizes.dtype)
            _register(layer, "w2_bias", (sizes.places, sizes.hidden), sizes.dtype)

    def weights(self, layer: nn.Module) -> MoEWeights:
        """The parameters as the networks take them."""
        given = dict(layer.named_parameters(recurse=False))
        others = ("w13_scale", "w2_scale", "w13_bias", "w2_bias")
        return MoEWeights(given["w13"], given["w2"], *(given.get(name) for name in others))

    def apply(
        self,
        layer: nn.Module,
        rows: torch.Tensor,
        group_list: GroupList,
        activation: Activation,
        dtype: torch.dtype,
        rows_scale: torch.Tensor | None = None,
        lora: RowsLoRA | None = None,
    ) -> torch.Tensor:
        """Run rows in the order of the experts through them.

        See :func:`ascend_fused_moe.mlp.unified_apply_mlp`.
        """
        given = build_mlp_compute_input(
            rows,
            group_list,
            self.weights(layer),
            rows_scale=rows_scale,
            quant=self.quant,
            activation=activation,
            dtype=dtype,
            lora=lora,
        )
        return unified_apply_mlp(given)

    def apply_to_tokens(
        self,
        layer: nn.Module,
        x: torch.Tensor,
        weights: torch.Tensor,
        ids: torch.Tensor,
        activation: Activation,
        dtype: torch.dtype,
        shared: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Run tokens through all of their experts, and through a shared one.

        See :meth:`ascend_fused_moe.layers.routed_experts.AscendRoutedExperts.forward_tokens`.
        """
        stacked = self.weights(layer)
        if is_plain_swiglu(stacked, self.quant, activation):
            return fused_experts(x, stacked.w13, stacked.w2, weights, ids, activation.limit, shared)
        if x.is_cpu and is_clipped_swiglu(stacked, self.quant, activation):
            # On an NPU its own operators take the rows of all experts at once.
            given = x, stacked.w13, stacked.w2, weights, ids, activation.limit, shared
            return fused_experts(*given, alpha=activation.alpha, bias=activation.bias)
        rows, index, counts = permute(x, ids.long(), stacked.experts)
        group_list = GroupList(counts, GroupListKind.COUNTS)
        if rows.shape[0]:
            rows = self.apply(layer, rows, group_list, activation, dtype)
        out = unpermute(rows, index, weights)
        if shared is None:
            return out
        return out + linear(activation(linear(x, shared[0])), shared[1])

    def _create(
        self, layer: nn.Module, name: str, shape: tuple[int, int, int], sizes: ExpertSizes
    ) -> None:
        _register(layer, name, shape, sizes.dtype)


class AscendQuantizedFusedMoEMethod(AscendUnquantizedFusedMoEMethod):
    """Experts whose weights are stored in a format of their own, with scales.

    Args:
        quant: the mode.
        scale_dtype: of the scales that the checkpoint has, where the format leaves a choice:
            float32 (the default) or bfloat16 for integers, float32 or uint8 for blocks.

    Raises:
        InvalidInputError: a mode without quantisation, or a dtype that the format does not have.
    """

    def __init__(self, quant: MoEQuantParams, scale_dtype: torch.dtype | None = None) -> None:
        if not quant.is_quant:
            raise InvalidInputError(
                "mode 'none'", "it has no scales", "Use AscendUnquantizedFusedMoEMethod."
            )
        allowed = FORMATS[quant.weights].scale_dtypes
        self.quant = quant
        self.scale_dtype = scale_dtype or allowed[0]
        if self.scale_dtype not in allowed:
            raise InvalidInputError(
                f"scales of {self.scale_dtype} in mode {quant.mode.value!r}",
                f"they are {' or '.join(map(str, allowed))}",
                "Convert the checkpoint's scales.",
            )

    @property
    def unit(self) -> int:
        """Channels of ``I`` that a tensor-parallel slice, and gate and up, must not cut."""
        if self.quant.weights == "int4":
            return self.quant.group_size or 2
        return {"int8": 1, "fp8_block": COLUMNS}.get(self.quant.weights, BLOCK)

    def _create(
        self, layer: nn.Module, name: str, shape: tuple[int, int, int], sizes: ExpertSizes
    ) -> None:
        form = FORMATS[self.quant.weights]
        places, outputs, columns = shape
        share = BLOCK if self.quant.is_mxfp else self.quant.group_size or form.per_byte
        if columns % share:
            raise InvalidInputError(
                f"{name} of {columns} columns in mode {self.quant.mode.value!r}",
                f"{share} columns go together",
                "Choose another quantisation for such experts.",
            )
        _register(layer, name, (places, outputs, columns // form.per_byte), form.dtypes[0])
        shares: tuple[int, ...] = ()
        if self.quant.weights == "fp8_block":
            outputs, shares = -(-outputs // COLUMNS), (-(-columns // COLUMNS),)
        elif self.quant.is_mxfp:
            shares = (columns // BLOCK,)
        elif self.quant.group_size:
            shares = (columns // self.quant.group_size,)
        _register(layer, f"{name}_scale", (places, outputs, *shares), self.scale_dtype)


def method_of(
    quant: MoEQuantParams | None, scale_dtype: torch.dtype | None = None
) -> AscendUnquantizedFusedMoEMethod:
    """The method for a mode.

    Args:
        quant: the mode; None for none.
        scale_dtype: see :class:`AscendQuantizedFusedMoEMethod`.
    """
    if quant is None or quant.mode is QuantMode.NONE:
        return AscendUnquantizedFusedMoEMethod()
    return AscendQuantizedFusedMoEMethod(quant, scale_dtype)


def _register(layer: nn.Module, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    # Places without an expert keep these zeros, so that they hold numbers.
    parameter = nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False)
    layer.register_parameter(name, parameter)
