"""How a torch operator runs on the simulated device: one kernel for all of them.

Arguments are aliased to the CPU, the CPU's kernel runs, and results are aliased back: a result
that is an argument becomes that argument, one in an argument's storage becomes a view of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import torch

from ascend_ops_core.testing.simulated_npu.aliases import (
    reinterpreted,
    to_cpu_alias,
    to_npu_alias,
)
from ascend_ops_core.testing.simulated_npu.counters import COUNTERS
from ascend_ops_core.testing.simulated_npu.generators import default_generator, drawing_from
from ascend_ops_core.testing.simulated_npu.special import SPECIAL, replace_contents
from ascend_ops_core.testing.simulated_npu.state import current_device, index_of, installation

_RUN_ON_CPU = ("aten", "prims", "prim")

# A CPU tensor beside npu tensors is refused except where torch itself takes it.
_MIXED = {
    "aten::index.Tensor",
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::_unsafe_index.Tensor",
    "aten::_unsafe_index_put",
}

_RESIZE_REFUSED = "resize storage that is not resizable"

_seeded = torch.Tag.nondeterministic_seeded
_waiting = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}


class _Arguments:
    """The arguments of one call, aliased to the CPU."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.device: int | None = None
        self.asked: int | None = None
        self.mixed = False

    def to_cpu(self, value: Any) -> Any:
        """Alias tensors in ``value``, and note what is where."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.device):
            if value.type != "npu":
                return value
            self.asked = index_of(value)
            return torch.device("cpu")
        if isinstance(value, (list, tuple)):
            return _like(value, (self.to_cpu(one) for one in value))
        return value

    def _tensor(self, value: torch.Tensor) -> torch.Tensor:
        kind = value.device.type
        if kind == "npu":
            if self.device is None:
                self.device = value.device.index
            elif self.device != value.device.index and value.dim() > 0:
                raise RuntimeError(
                    f"{self.name}: Expected all tensors to be on the same device, but found npu:"
                    f"{self.device} and {value.device} (simulated NPU)"
                )
            alias = to_cpu_alias(value)
            self.pairs.append((value, alias))
            return alias
        if kind == "cpu" and value.dim() > 0:
            self.mixed = True
        return value

    def check(self) -> None:
        """Refuse CPU tensors among npu tensors."""
        if self.mixed and self.device is not None and self.name not in _MIXED:
            raise RuntimeError(
                f"{self.name}: Expected all tensors to be on the same device, but found npu:"
                f"{self.device} and cpu (simulated NPU). Move the CPU tensor with .to('npu')."
            )

    @property
    def index(self) -> int:
        """Device of the results."""
        if self.asked is not None:
            return self.asked
        return current_device() if self.device is None else self.device

    def to_npu(self, result: Any) -> Any:
        """Give results their npu tensors."""
        if isinstance(result, torch.Tensor):
            return self._result(result)
        if isinstance(result, (list, tuple)):
            return _like(result, (self.to_npu(one) for one in result))
        return result

    def _result(self, result: torch.Tensor) -> torch.Tensor:
        if result.device.type != "cpu":
            return result
        for original, alias in self.pairs:
            if result is alias:
                return original
        storage = result.untyped_storage()._cdata
        for original, alias in self.pairs:
            if alias.untyped_storage()._cdata == storage and alias.dtype == result.dtype:
                plain = not (result.is_conj() or result.is_neg())
                if plain:
                    place = int(result.storage_offset())
                    return reinterpreted(original, result.shape, result.stride(), place)
        return to_npu_alias(result, self.index)


def fallback(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Run ``op`` for tensors of the simulated device."""
    if torch.is_inference_mode_enabled() and op.is_view and _has_normal_tensor(args):
        # A view of a normal tensor is a normal tensor even there.
        with torch.inference_mode(False), torch.no_grad():
            return _run(op, args, kwargs)
    return _run(op, args, kwargs)


def on_host_memory(call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call a function with CPU tensors over the memory of npu tensors, as a kernel reads them.

    What it writes to them is written to the npu tensors; results become npu tensors.
    """
    arguments = _Arguments(getattr(call, "__name__", repr(call)))
    on_cpu = [arguments.to_cpu(one) for one in args]
    arguments.check()
    return arguments.to_npu(call(*on_cpu))


class _Operator:
    """What the schema of an operator says, read once."""

    def __init__(self, op: torch._ops.OpOverload) -> None:
        schema = op._schema
        overload = schema.overload_name
        self.name = f"{schema.name}.{overload}" if overload else str(schema.name)
        self.seeded = _seeded in op.tags
        self.may_wait = bool(_waiting.intersection(op.tags))
        self.tensors = [str(one.type) == "Tensor" for one in schema.arguments]
        self.written = [
            one.name
            for one in schema.arguments
            if one.alias_info is not None and one.alias_info.is_write
        ]


@cache
def _operator(op: torch._ops.OpOverload) -> _Operator:
    return _Operator(op)


def qualified_name(op: torch._ops.OpOverload) -> str:
    """Return ``namespace::name.overload``."""
    return _operator(op).name


def _run(op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    COUNTERS.operators += 1
    known = _operator(op)
    name = known.name
    if name in SPECIAL:
        return SPECIAL[name](*args, **kwargs)
    arguments = _Arguments(name)
    on_cpu = [arguments.to_cpu(one) for one in args]
    named = {key: arguments.to_cpu(one) for key, one in kwargs.items()}
    arguments.check()
    if op.namespace == "npu":
        return arguments.to_npu(_run_torch_npu(op, on_cpu, named))
    if op.namespace not in _RUN_ON_CPU:
        raise NotImplementedError(
            f"{name} has no kernel for npu tensors (no PrivateUse1 kernel is registered); the "
            "simulated NPU runs torch's own operators and torch_npu's, and never falls back to the "
            "CPU kernel of another library's"
        )
    if named.get("pin_memory"):
        raise RuntimeError(f"{name}: only CPU memory can be pinned")
    named.pop("pin_memory", None)
    if known.may_wait and _waits(name, args):
        COUNTERS.synchronisations += 1
    return arguments.to_npu(_call(op, on_cpu, named, arguments, kwargs))


def _call(
    op: torch._ops.OpOverload,
    args: list[Any],
    kwargs: dict[str, Any],
    arguments: _Arguments,
    original_kwargs: Mapping[str, Any],
) -> Any:
    """Call the CPU kernel, with random numbers of the device and room for ``out`` tensors."""
    call = _with_scalars(op, args)
    outs = _resizable_outs(op, kwargs, original_kwargs, only_empty=True)
    if _operator(op).seeded and not _has_generator(args, kwargs):
        with drawing_from(default_generator(arguments.index)):
            result = call(*args, **kwargs)
    else:
        try:
            result = call(*args, **kwargs)
        except RuntimeError as error:
            if _RESIZE_REFUSED not in str(error):
                raise
            outs = _resizable_outs(op, kwargs, original_kwargs, only_empty=False)
            result = call(*args, **kwargs)
    for original, made in outs:
        replace_contents(original, made)
        arguments.pairs.append((original, made))
    return result


def _with_scalars(op: torch._ops.OpOverload, args: list[Any]) -> Any:
    """The overload to call: Python numbers may stand for tensors here, but not in its schema."""
    for is_tensor, value in zip(_operator(op).tensors, args, strict=False):
        if is_tensor and isinstance(value, (int, float, complex)):
            return op.overloadpacket
    return op


def _resizable_outs(
    op: torch._ops.OpOverload,
    kwargs: dict[str, Any],
    original_kwargs: Mapping[str, Any],
    *,
    only_empty: bool,
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Put fresh CPU tensors in place of ``out`` tensors, whose aliases cannot grow."""
    outs = []
    for name in _operator(op).written:
        original = original_kwargs.get(name)
        if isinstance(original, torch.Tensor) and original.device.type == "npu":
            if only_empty and original.numel() > 0:
                continue
            made = torch.empty(0, dtype=original.dtype)
            kwargs[name] = made
            outs.append((original, made))
    return outs


def _run_torch_npu(op: torch._ops.OpOverload, args: list[Any], kwargs: dict[str, Any]) -> Any:
    from ascend_ops_core.testing.npu_references import run

    contract = installation().contract
    if contract is None:
        raise NotImplementedError(
            f"{qualified_name(op)}: the simulated NPU was installed without a torch_npu wheel"
        )
    return run(contract, op, args, kwargs)


def _like(sequence: Any, items: Iterable[Any]) -> Any:
    """A list, tuple or named tuple of the same kind."""
    return type(sequence)(*items) if hasattr(sequence, "_fields") else type(sequence)(items)


def _has_generator(args: list[Any], kwargs: dict[str, Any]) -> bool:
    return any(isinstance(one, torch.Generator) for one in (*args, *kwargs.values()))


def _has_normal_tensor(values: Any) -> bool:
    for one in values:
        if isinstance(one, torch.Tensor):
            if not one.is_inference():
                return True
        elif isinstance(one, (list, tuple)) and _has_normal_tensor(one):
            return True
    return False


def _waits(name: str, args: tuple[Any, ...]) -> bool:
    """Whether the host needs a value: indexing does only with a mask."""
    if name != "aten::index.Tensor":
        return True
    masks = (torch.bool, torch.uint8)
    return any(isinstance(one, torch.Tensor) and one.dtype in masks for one in args[1])
