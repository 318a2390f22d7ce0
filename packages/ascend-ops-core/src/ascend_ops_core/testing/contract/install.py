"""Registering a wheel's operators in this process."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ascend_ops_core.devices import chosen_family
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing.contract.calls import Call, describe
from ascend_ops_core.testing.contract.metas import SOC_VERSIONS, MetaKernel, collect
from ascend_ops_core.testing.contract.schemas import read_dtype_codes, read_schemas
from ascend_ops_core.testing.contract.wheel import WheelFiles, open_wheel

_REMEMBERED_FORMS = 4096


class Contract:
    """The operators of one torch_npu, registered under ``torch.ops.npu``.

    Made by :func:`install`. Attributes:

        version: of the wheel.
        origin: file or folder it was read from.
        schemas: schema of every registered operator by name, overload included.
        refused: operators whose schema this torch does not accept, with torch's reason; they are
            absent, and a test that needs one fails.
        with_meta: operators with a meta kernel.
        without_meta: operators without; a call on meta tensors is refused after the schema check.
        foreign_metas: registrations of the wheel that change other namespaces, left out.
        orphan_metas: meta kernels of operators that the schemas do not have.
        dtype_codes: integers for ``dst_type`` and similar arguments by dtype name, for those that
            are not in torch's own numbering: ``dtype_codes["float8_e8m0fnu"]``.
        calls: every call so far that matched its schema, in order; clear it as you like.
    """

    def __init__(self, files: WheelFiles, family: str) -> None:
        self.version = files.version
        self.origin = files.origin
        self._family = _known(family)
        self.calls: list[Call] = []
        self.schemas: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.dtype_codes = read_dtype_codes(files)
        self._references_installed = False
        self._announced: dict[Any, tuple[Any, list[Call]]] = {}
        self._library = torch.library.Library("npu", "FRAGMENT")
        for name, schema in read_schemas(files).items():
            try:
                self._library.define(schema)
                self.schemas[name] = schema
            except RuntimeError as error:
                self.refused[name] = str(error).strip().splitlines()[0]
        found = collect(files, self.dtype_codes, lambda: self.family)
        self.foreign_metas = found.foreign
        self.orphan_metas = sorted(found.kernels.keys() - self.schemas.keys())
        self.with_meta = [name for name in self.schemas if name in found.kernels]
        self.without_meta = [name for name in self.schemas if name not in found.kernels]
        for name in self.schemas:
            self._library.impl(name, self._recording(name, found.kernels.get(name)), "Meta")

    @property
    def family(self) -> str:
        """Device family that the meta kernels assume.

        The one that :func:`ascend_ops_core.devices.device_family` or ``use_family`` chose, else
        the one given to :func:`install`.
        """
        return chosen_family() or self._family

    def use_family(self, family: str) -> None:
        """Set the family that holds where none is chosen.

        Raises:
            InvalidInputError: the family is not known.
        """
        self._family = _known(family)

    def install_references(self) -> None:
        """Let calls on CPU tensors run the references of :mod:`..npu_references`, once.

        Each call goes through the meta kernel first, and its results are compared with what the
        meta kernel announces.
        """
        from ascend_ops_core.testing.npu_references import on_cpu

        if not self._references_installed:
            self._references_installed = True
            for name, kernel in on_cpu(self).items():
                self._library.impl(name, kernel, "CPU")

    def check(
        self, op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run the meta kernel of ``op`` for a call on real tensors and record the call.

        Args:
            op: an operator of the namespace ``npu``.
            args: its positional arguments; tensors may be on any device.
            kwargs: its keyword arguments.

        Returns:
            The meta kernel's result (meta tensors), or None if the wheel has none.
        """
        name = operator_name(op)
        if name in self.without_meta:
            self._record(name, op, args, kwargs, checked=False)
            return None
        form = (name, self.family, _form(args), _form(kwargs))
        if form not in self._announced:
            before = len(self.calls)
            with torch.inference_mode(False), torch.no_grad():
                announced = op(*_as_meta(args), **_as_meta(kwargs))
            if len(self._announced) >= _REMEMBERED_FORMS:
                self._announced.clear()
            self._announced[form] = announced, self.calls[before:]
            return announced
        # A meta kernel sees nothing but forms, so it announces the same again.
        announced, calls = self._announced[form]
        self.calls.extend(calls)
        return announced

    def _recording(self, name: str, kernel: MetaKernel | None) -> Callable[..., Any]:
        base, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.npu, base), overload or "default")

        missing = _defaults_wanted(op, kernel) if kernel is not None else ()

        def run(*args: Any, **kwargs: Any) -> Any:
            self._record(name, op, args, kwargs, checked=kernel is not None)
            if kernel is None:
                raise NotImplementedError(
                    f"npu::{name}: torch_npu {self.version} has no meta kernel for it. The call "
                    f"matches the schema {self.schemas[name]}; its result cannot be described."
                )
            return kernel(*args, *missing[len(args) :], **kwargs)

        return run

    def _record(
        self,
        name: str,
        op: torch._ops.OpOverload,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        checked: bool,
    ) -> None:
        arguments = describe(op, args, kwargs)
        self.calls.append(Call(name, self.schemas[name], arguments, self.family, checked))


_installed: Contract | None = None


def install(wheel: str | os.PathLike[str] | None = None, family: str = "A3") -> Contract:
    """Register the operators of a torch_npu wheel in this process.

    A second call with the same wheel returns the same object, with ``family`` set anew.

    Args:
        wheel: see :func:`ascend_ops_core.testing.contract.open_wheel`.
        family: device family that the meta kernels assume.

    Raises:
        InvalidInputError: no wheel, an unknown family, another wheel is installed already, or the
            process has operators of a real torch_npu.
    """
    global _installed
    files = open_wheel(wheel)
    if _installed is None:
        if torch._C._dispatch_has_kernel("npu::npu_rms_norm"):
            raise InvalidInputError(
                "contract mode",
                "torch_npu is imported in this process, and its operators exist once only",
                "Install contract mode in a process of its own.",
            )
        _installed = Contract(files, family)
    elif _installed.origin != files.origin:
        raise InvalidInputError(
            f"torch_npu wheel {files.origin!r}",
            f"this process has the operators of {_installed.origin!r} already",
            "Check each wheel in a process of its own.",
        )
    _installed.use_family(family)
    return _installed


def installed() -> Contract | None:
    """Return the contract of this process, if there is one."""
    return _installed


def operator_name(op: torch._ops.OpOverload) -> str:
    """Return the name of an operator as in the wheel's schemas: ``"npu_format_cast.Tensor"``."""
    name = op._schema.name.split("::")[1]
    return f"{name}.{op._schema.overload_name}" if op._schema.overload_name else name


def _defaults_wanted(op: torch._ops.OpOverload, kernel: MetaKernel) -> tuple[Any, ...]:
    """Defaults of the schema by position, as far as the kernel has no default of its own.

    The dispatcher leaves out trailing arguments that equal their default, and some of the wheel's
    kernels have none for them.
    """
    positional = [argument for argument in op._schema.arguments if not argument.kwarg_only]
    parameters = list(inspect.signature(kernel).parameters.values())
    wanted = sum(
        parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.default is parameter.empty
        for parameter in parameters
    )
    return tuple(argument.default_value for argument in positional[:wanted])


def _known(family: str) -> str:
    if family not in SOC_VERSIONS:
        raise InvalidInputError(
            f"device family {family!r}",
            f"known are {', '.join(SOC_VERSIONS)}",
            "Choose one of them.",
        )
    return family


def _form(value: Any) -> Any:
    """What a meta kernel can see of an argument, as a key."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride()
    if isinstance(value, (list, tuple)):
        return tuple(_form(one) for one in value)
    if isinstance(value, Mapping):
        return tuple((name, _form(one)) for name, one in sorted(value.items()))
    # True, 1 and 1.0 are equal.
    return type(value), value


def _as_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return type(value)(_as_meta(one) for one in value)
    if isinstance(value, Mapping):
        return {name: _as_meta(one) for name, one in value.items()}
    if isinstance(value, torch.device):
        return torch.device("meta")
    return value
