"""vLLM's linear layers with the parallel forms of :mod:`.table` and this package's products."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Parameter
from vllm.model_executor.layers.linear import (
    WEIGHT_LOADER_V2_SUPPORTED,
    ColumnParallelLinear,
    LinearBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)
from vllm.model_executor.utils import set_weight_attrs

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.vllm.linear.method import AscendUnquantizedLinearMethod
from ascend_ops_core.vllm.linear.parallel_ops import CustomLinearOp, Output
from ascend_ops_core.vllm.linear.table import get_parallel_op, get_replicated_op


def _shares(op: CustomLinearOp | None) -> dict[str, Any]:
    """Arguments of vLLM's column layer that give it the op's part of the weight."""
    if op is None:
        return {}
    if op.local:
        return {"disable_tp": True}
    return {"tp_rank": op.tp_rank, "tp_size": op.tp_size}


def _use_our_product(layer: Any) -> None:
    # vLLM's method made the weight; ours inherits how.
    if type(layer.quant_method) is UnquantizedLinearMethod:
        layer.quant_method = AscendUnquantizedLinearMethod()


def _divide(what: str, size: int, parts: int) -> int:
    if size % parts:
        raise InvalidInputError(
            f"{what} of {size} over {parts} ranks",
            "every rank takes the same share",
            "Choose a group whose size divides it.",
        )
    return size // parts


class AscendColumnParallelLinear(ColumnParallelLinear):
    """Column-parallel layer; arguments as vLLM's."""

    def __init__(
        self, input_size: int, output_size: int, bias: bool = True, *args: Any, **kwargs: Any
    ) -> None:
        op = None
        if kwargs.get("tp_size") is None:
            op = _column_op(self, kwargs)
        super().__init__(input_size, output_size, bias, *args, **(kwargs | _shares(op)))
        self.custom_op = op
        _use_our_product(self)

    def forward(self, input_: torch.Tensor) -> Output:
        """``[T, K]`` to this rank's columns."""
        return _forward(self, super().forward, input_)


class AscendMergedColumnParallelLinear(MergedColumnParallelLinear):
    """Several column-parallel weights in one; arguments as vLLM's."""

    def __init__(
        self, input_size: int, output_sizes: list[int], bias: bool = True, **kwargs: Any
    ) -> None:
        op = _column_op(self, kwargs)
        shares = _shares(op)
        if "tp_size" in shares:
            for size in output_sizes:
                _divide(f"output of {kwargs['prefix']}", size, shares["tp_size"])
            # vLLM's own constructor knows no other group than tensor parallelism.
            self.output_sizes = output_sizes
            ColumnParallelLinear.__init__(
                self, input_size, sum(output_sizes), bias, **(kwargs | shares)
            )
        else:
            super().__init__(input_size, output_sizes, bias, **(kwargs | shares))
        self.custom_op = op
        _use_our_product(self)

    def forward(self, input_: torch.Tensor) -> Output:
        """``[T, K]`` to this rank's columns of each weight."""
        return _forward(self, super().forward, input_)


class AscendQKVParallelLinear(QKVParallelLinear):
    """Query, key and value projections in one weight; arguments as vLLM's."""

    def __init__(
        self,
        hidden_size: int,
        head_size: int,
        total_num_heads: int,
        total_num_kv_heads: int | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        op = _column_op(self, kwargs)
        shares = _shares(op)
        if "tp_size" in shares:
            raise InvalidInputError(
                f"{type(op).__name__} for {kwargs['prefix']}",
                "heads are shared out by tensor parallelism or not at all",
                "Correct the table of parallel forms.",
            )
        super().__init__(
            hidden_size, head_size, total_num_heads, total_num_kv_heads, *args, **(kwargs | shares)
        )
        self.custom_op = op
        _use_our_product(self)

    def forward(self, input_: torch.Tensor) -> Output:
        """``[T, K]`` to this rank's query, key and value heads."""
        return _forward(self, super().forward, input_)


class AscendReplicatedLinear(ReplicatedLinear):
    """The whole weight on every rank; arguments as vLLM's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.custom_op = get_replicated_op(self)
        _use_our_product(self)

    def forward(self, x: torch.Tensor) -> Output:
        """``[T, K]`` to ``[T, N]``."""
        return self.custom_op.apply(x)


class AscendRowParallelLinear(RowParallelLinear):
    """Row-parallel layer; arguments as vLLM's."""

    def __init__(
        self, input_size: int, output_size: int, bias: bool = True, *args: Any, **kwargs: Any
    ) -> None:
        op = get_parallel_op(
            "row", kwargs.get("prefix", ""), self, disable_tp=kwargs.get("disable_tp", False)
        )
        if op is None or op.local:
            super().__init__(input_size, output_size, bias, *args, **(kwargs | _shares(op)))
        else:
            if args:
                raise InvalidInputError(
                    f"{len(args)} more positional arguments", "they are named", "Name them."
                )
            self._build(op, input_size, output_size, bias, **kwargs)
        self.custom_op = op
        _use_our_product(self)

    def _build(
        self,
        op: CustomLinearOp,
        input_size: int,
        output_size: int,
        bias: bool,
        *,
        input_is_parallel: bool = True,
        skip_bias_add: bool = False,
        params_dtype: torch.dtype | None = None,
        reduce_results: bool = True,
        quant_config: Any = None,
        prefix: str = "",
        return_bias: bool = True,
        disable_tp: bool = False,
    ) -> None:
        """As vLLM's constructor, whose parts are always those of tensor parallelism."""
        self.input_size_per_partition = _divide(f"input of {prefix}", input_size, op.tp_size)
        self.output_size_per_partition = output_size
        self.output_partition_sizes = [output_size]
        LinearBase.__init__(
            self,
            input_size,
            output_size,
            bias,
            skip_bias_add,
            params_dtype,
            quant_config,
            prefix,
            return_bias=return_bias,
            disable_tp=disable_tp,
            tp_rank=op.tp_rank,
            tp_size=op.tp_size,
        )
        self.input_is_parallel = input_is_parallel
        self.reduce_results = reduce_results
        second = self.quant_method.__class__.__name__ in WEIGHT_LOADER_V2_SUPPORTED
        self.quant_method.create_weights(
            layer=self,
            input_size_per_partition=self.input_size_per_partition,
            output_partition_sizes=self.output_partition_sizes,
            input_size=input_size,
            output_size=output_size,
            params_dtype=self.params_dtype,
            weight_loader=self.weight_loader_v2 if second else self.weight_loader,
        )
        if bias:
            self.bias = Parameter(torch.empty(output_size, dtype=self.params_dtype))
            attributes = {"output_dim": 0, "weight_loader": self.weight_loader}
            set_weight_attrs(self.bias, attributes)
        else:
            self.register_parameter("bias", None)
        self.update_param_tp_status()

    def forward(self, input_: torch.Tensor) -> Output:
        """This rank's features of ``[T, K]`` to ``[T, N]``."""
        return _forward(self, super().forward, input_)


def _column_op(layer: Any, kwargs: dict[str, Any]) -> CustomLinearOp | None:
    return get_parallel_op(
        "column", kwargs.get("prefix", ""), layer, disable_tp=kwargs.get("disable_tp", False)
    )


def _forward(layer: Any, stock: Any, x: torch.Tensor) -> Output:
    if layer.custom_op is not None:
        output: Output = layer.custom_op.apply(x)
        return output
    stock_output: Output = stock(x)
    return stock_output
