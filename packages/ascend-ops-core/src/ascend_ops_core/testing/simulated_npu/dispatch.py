"""How a torch operator runs on the simulated device: one kernel for all of them.

Arguments are aliased to the CPU, the CPU's kernel runs, and results are aliased back: a result
that is an argument becomes that argument, one in an argument's storage becomes a view of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ascend_ops_core.testing.simulated_npu.aliases import (
    reinterpreted,
    to_cpu_alias,
    to_npu_alias,
    without_owning,
)
from ascend_ops_core.testing.simulated_npu.counters import COUNTERS, host_waits
from ascend_ops_core.testing.simulated_npu.generators import default_generator, drawing_from
from ascend_ops_core.testing.simulated_npu.graphs import NPUGraph, capturing
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

# Their results are views of arguments, which their schemas do not say.
_UNMARKED_VIEWS = {"aten::_unsafe_view"}

_RESIZE_REFUSED = "resize storage that is not resizable"

# Thousands of operators run in a step, so the usual arguments are told apart first.
_PLAIN = {int, float, bool, str, type(None), torch.dtype}
_TENSORS = {torch.Tensor, torch.nn.Parameter}

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
        if type(value) in _PLAIN:
            return value
        if type(value) in _TENSORS or isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.device):
            if value.type != "npu":
                return value
            self.asked = index_of(value)
            return torch.device("cpu")
        if isinstance(value, (list, tuple)):
            if value and type(value[0]) is int:
                return value
            return _like(value, (self.to_cpu(one) for one in value))
        return value

    def _tensor(self, value: torch.Tensor) -> torch.Tensor:
        if value.is_cpu:
            if value.dim() > 0:
                self.mixed = True
            return value
        place = value.device
        if place.type != "npu":
            return value
        if self.device is None:
            self.device = place.index
        elif self.device != place.index and value.dim() > 0:
            raise RuntimeError(
                f"{self.name}: Expected all tensors to be on the same device, but found npu:"
                f"{self.device} and {place} (simulated NPU)"
            )
        alias = to_cpu_alias(value)
        self.pairs.append((value, alias))
        return alias

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

    def to_npu(self, result: Any, *, fresh: bool = False) -> Any:
        """Give results their npu tensors; ``fresh`` ones are known to be in memory of their own."""
        if isinstance(result, torch.Tensor):
            return self._result(result, fresh)
        if isinstance(result, (list, tuple)):
            return _like(result, (self.to_npu(one, fresh=fresh) for one in result))
        return result

    def _result(self, result: torch.Tensor, fresh: bool) -> torch.Tensor:
        if not result.is_cpu:
            return result
        if fresh:
            return to_npu_alias(result, self.index)
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
    graph = capturing()
    if graph is not None:
        for _, alias in arguments.pairs:
            graph.keep_contents(alias)
    result = call(*on_cpu)
    here = arguments.to_npu(result)
    if graph is not None:
        _record(graph, call, arguments, on_cpu, {}, result)
    return here


class _Operator:
    """What the schema of an operator says, read once."""

    def __init__(self, op: torch._ops.OpOverload) -> None:
        schema = op._schema
        overload = schema.overload_name
        self.op = op
        self.name = f"{schema.name}.{overload}" if overload else str(schema.name)
        self.namespace = op.namespace
        self.special = SPECIAL.get(self.name)
        self.seeded = _seeded in op.tags
        self.may_wait = bool(_waiting.intersection(op.tags))
        self.tensors = [
            place for place, one in enumerate(schema.arguments) if str(one.type) == "Tensor"
        ]
        self.written = [
            one.name
            for one in schema.arguments
            if one.alias_info is not None and one.alias_info.is_write
        ]
        # Only torch's own schemas are to be relied on for that.
        self.fresh = (
            self.namespace == "aten"
            and self.name not in _UNMARKED_VIEWS
            and all(one.alias_info is None for one in schema.returns)
        )


_operators: dict[int, _Operator] = {}


def _operator(op: torch._ops.OpOverload) -> _Operator:
    # By its address, since torch takes long to hash an operator; it is kept, so that stays its own.
    known = _operators.get(id(op))
    if known is None:
        known = _operators[id(op)] = _Operator(op)
    return known


def qualified_name(op: torch._ops.OpOverload) -> str:
    """Return ``namespace::name.overload``."""
    return _operator(op).name


def _run(op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    COUNTERS.operators += 1
    known = _operator(op)
    if known.special is not None:
        return known.special(*args, **kwargs)
    name = known.name
    arguments = _Arguments(name)
    on_cpu = [arguments.to_cpu(one) for one in args]
    named = {key: arguments.to_cpu(one) for key, one in kwargs.items()}
    arguments.check()
    if known.namespace == "npu":
        return _done(known, arguments, on_cpu, named, kwargs)
    if known.namespace not in _RUN_ON_CPU:
        raise NotImplementedError(
            f"{name} has no kernel for npu tensors (no PrivateUse1 kernel is registered); the "
            "simulated NPU runs torch's own operators and torch_npu's, and never falls back to the "
            "CPU kernel of another library's"
        )
    if named.get("pin_memory"):
        raise RuntimeError(f"{name}: only CPU memory can be pinned")
    named.pop("pin_memory", None)
    if known.may_wait and _waits(name, args):
        host_waits(name)
    return _done(known, arguments, on_cpu, named, kwargs)


def _done(
    known: _Operator,
    arguments: _Arguments,
    args: list[Any],
    kwargs: dict[str, Any],
    original_kwargs: Mapping[str, Any],
) -> Any:
    """Run a call, into the graph that is being captured if there is one."""
    op, graph = known.op, capturing()
    if graph is not None:
        for target in _written(op, args, kwargs):
            graph.keep_contents(target)
    given = len(arguments.pairs)
    if known.namespace == "npu":
        result = _run_torch_npu(op, args, kwargs)
    else:
        result = _call(known, args, kwargs, arguments, original_kwargs)
    here = arguments.to_npu(result, fresh=known.fresh)
    if graph is not None and not op.is_view:
        grown = [made for _, made in arguments.pairs[given:]]
        run = partial(_again, op, arguments.index)
        _record(graph, run, arguments, args, kwargs, result, grown)
    return here


def _again(op: torch._ops.OpOverload, device: int, /, *args: Any, **kwargs: Any) -> Any:
    """Run a recorded call once more."""
    known = _operator(op)
    if known.namespace == "npu":
        return _run_torch_npu(op, list(args), kwargs)
    call = _with_scalars(known, list(args))
    if not known.seeded:
        return call(*args, **kwargs)
    with drawing_from(default_generator(device)):
        return call(*args, **kwargs)


def _written(
    op: torch._ops.OpOverload, args: list[Any], kwargs: Mapping[str, Any]
) -> Iterator[torch.Tensor]:
    # Some of torch_npu's operators write to caches that their schemas do not mark.
    any_may_be = op.namespace == "npu"
    given = {**dict(zip((one.name for one in op._schema.arguments), args, strict=False)), **kwargs}
    for argument in op._schema.arguments:
        marked = argument.alias_info is not None and argument.alias_info.is_write
        if (any_may_be or marked) and argument.name in given:
            yield from _tensors(given[argument.name])


def _record(
    graph: NPUGraph,
    run: Callable[..., Any],
    arguments: _Arguments,
    args: list[Any],
    kwargs: Mapping[str, Any],
    result: Any,
    grown: Sequence[torch.Tensor] = (),
) -> None:
    # A graph must not keep memory from outside alive, or its loss would go unnoticed.
    aliases = [alias for _, alias in arguments.pairs]
    unowned = {id(alias): without_owning(alias) for alias in aliases}
    again_args = [_replaced(one, unowned) for one in args]
    again_kwargs = {key: _replaced(one, unowned) for key, one in kwargs.items()}
    storages = {alias.untyped_storage()._cdata for alias in aliases}
    results = [one for one in _tensors(result) if one.untyped_storage()._cdata not in storages]
    places = {one.untyped_storage()._cdata for one in unowned.values()}

    def again() -> None:
        values = run(*again_args, **again_kwargs)
        made = [one for one in _tensors(values) if one.untyped_storage()._cdata not in places]
        for old, new in zip(results, made, strict=True):
            old.copy_(new)

    graph.add(arguments.name, again, aliases, [*results, *grown])


def _replaced(value: Any, by_id: Mapping[int, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return by_id.get(id(value), value)
    if isinstance(value, (list, tuple)):
        return _like(value, (_replaced(one, by_id) for one in value))
    return value


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        if values.device.type == "cpu":
            yield values
    elif isinstance(values, (list, tuple)):
        for one in values:
            yield from _tensors(one)


def _call(
    known: _Operator,
    args: list[Any],
    kwargs: dict[str, Any],
    arguments: _Arguments,
    original_kwargs: Mapping[str, Any],
) -> Any:
    """Call the CPU kernel, with random numbers of the device and room for ``out`` tensors."""
    call = _with_scalars(known, args)
    outs = _resizable_outs(known, kwargs, original_kwargs, only_empty=True)
    if known.seeded and not _has_generator(args, kwargs):
        with drawing_from(default_generator(arguments.index)):
            result = call(*args, **kwargs)
    else:
        try:
            result = call(*args, **kwargs)
        except RuntimeError as error:
            if _RESIZE_REFUSED not in str(error):
                raise
            outs = _resizable_outs(known, kwargs, original_kwargs, only_empty=False)
            result = call(*args, **kwargs)
    for original, made in outs:
        replace_contents(original, made)
        arguments.pairs.append((original, made))
    return result


def _with_scalars(known: _Operator, args: list[Any]) -> Any:
    """The overload to call: Python numbers may stand for tensors here, but not in its schema."""
    for place in known.tensors:
        if place < len(args) and isinstance(args[place], (int, float, complex)):
            return known.op.overloadpacket
    return known.op


def _resizable_outs(
    known: _Operator,
    kwargs: dict[str, Any],
    original_kwargs: Mapping[str, Any],
    *,
    only_empty: bool,
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Put fresh CPU tensors in place of ``out`` tensors, whose aliases cannot grow."""
    outs = []
    for name in known.written:
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
