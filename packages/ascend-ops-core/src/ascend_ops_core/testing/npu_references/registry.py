"""The table of references, and how a call goes through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ascend_ops_core.testing.contract.install import Contract, operator_name


@dataclass(frozen=True)
class Reference:
    """One operator's definition.

    Attributes:
        op: name in ``torch.ops.npu``, with its overload if it has one.
        function: the definition; takes the schema's arguments.
        documented: products that the documentation lists, as device families. What is not listed
            is not refused, since the list lags behind what is in use.
        assumed: what the definition assumes because the documentation is silent, from its
            docstring; empty if nothing.
    """

    op: str
    function: Callable[..., Any]
    documented: tuple[str, ...]
    assumed: str


REFERENCES: dict[str, Reference] = {}
"""By operator name."""

Definition = Callable[..., Any]


def reference(op: str, *, documented: tuple[str, ...]) -> Callable[[Definition], Definition]:
    """Enter a function as the reference of ``op``.

    Args:
        op: name in ``torch.ops.npu``.
        documented: see :class:`Reference`.
    """

    def enter(function: Definition) -> Definition:
        text = function.__doc__ or ""
        assumed = text.partition("Assumed: ")[2].partition("\n\n")[0]
        REFERENCES[op] = Reference(op, function, documented, " ".join(assumed.split()))
        return function

    return enter


def run(
    contract: Contract,
    op: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Check a call against the contract, compute it, and compare the result's form.

    Args:
        contract: the contract of this process.
        op: an operator of the namespace ``npu``.
        args: its positional arguments; tensors on the CPU.
        kwargs: its keyword arguments.

    Raises:
        NotImplementedError: the operator has no reference.
        InvalidInputError: the documentation refuses the arguments.
        AssertionError: dtypes or shapes of the reference's results are not those that the wheel's
            meta kernel announces.
    """
    name = operator_name(op)
    announced = contract.check(op, args, kwargs)
    if name not in REFERENCES:
        raise NotImplementedError(
            f"npu::{name}: the call fits torch_npu {contract.version}, but no reference says what "
            "it computes. Write one in ascend_ops_core/testing/npu_references."
        )
    result = REFERENCES[name].function(*args, **kwargs)
    if announced is not None:
        _compare_forms(name, result, announced)
    return result


def on_cpu(contract: Contract) -> dict[str, Definition]:
    """Return a kernel for CPU tensors for each reference that the contract has an operator for."""
    return {name: _kernel(contract, name) for name in REFERENCES if name in contract.schemas}


def _kernel(contract: Contract, name: str) -> Definition:
    base, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.npu, base), overload or "default")

    def call(*args: Any, **kwargs: Any) -> Any:
        return run(contract, op, args, kwargs)

    return call


def _compare_forms(name: str, result: Any, announced: Any) -> None:
    results = result if isinstance(result, (tuple, list)) else (result,)
    expected = announced if isinstance(announced, (tuple, list)) else (announced,)
    for i, (value, meta) in enumerate(zip(results, expected, strict=True)):
        if not (isinstance(value, torch.Tensor) and isinstance(meta, torch.Tensor)):
            continue
        found = (value.dtype, tuple(value.shape))
        wanted = (meta.dtype, tuple(meta.shape))
        if found != wanted:
            raise AssertionError(
                f"npu::{name}: result {i} of the reference is {found}, the wheel's meta kernel "
                f"announces {wanted}"
            )
