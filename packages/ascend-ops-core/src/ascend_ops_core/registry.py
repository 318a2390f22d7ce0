"""The operators of every package: schema, definition, and what runs on which device.

A family declares each of its operators once, in its ``__init__``::

    _RMS_NORM = declare(
        __name__,
        "rms_norm(Tensor x, Tensor? weight, float eps) -> Tensor",
        npu=("torch_npu", "triton"),
        fake=lambda x, weight, eps: torch.empty_like(x),
    )

The rest is found by name in the family's folder:

=================  ==========================================  ==================================
what               where                                       takes
=================  ==========================================  ==================================
definition         ``reference.py: rms_norm``                  the schema's arguments, in order
``"torch_npu"``    ``npu.py: rms_norm``                        the same
its limits         ``npu.py: supports_rms_norm``               facts, then the same
``"triton"``       ``kernels.py: rms_norm``                    the same
its limits         ``npu.py: supports_rms_norm_triton``        facts, then the same
``"torch"``        the definition itself, run by torch's ops   the same
inputs for proofs  ``cases.py: CASES["rms_norm"]``             see :mod:`ascend_ops_core.cases`
=================  ==========================================  ==================================

Every operator is also ``torch.ops.<package>.<name>``, which is what a compiled graph sees. Called
directly, an operator goes straight to its implementation, which is cheaper and keeps autograd.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ascend_ops_core.devices import DeviceFacts, current_facts
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.launch import definition_runner
from ascend_ops_core.selection import Choice, choose, forced_implementation
from ascend_ops_core.support import SUPPORTED, Support, refuse

IMPLEMENTATIONS = ("torch_npu", "triton", "torch")
"""What can stand in ``npu=``, in the order in which it is usually preferred."""

_REMEMBERED_SHAPES = 1024

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_is_compiling = torch.compiler.is_compiling

_operators: dict[str, Operator] = {}
_libraries: dict[str, torch.library.Library] = {}


class Operator:
    """One operator. Call it with the schema's arguments, positionally.

    Attributes:
        namespace: the import name of its package.
        name: its name within the package.
        family: dotted name of its folder.
        schema: its schema in torch's notation; arguments that are written carry ``(a!)``.
        npu: names of its NPU implementations, the preferred one first.
        packet: the registered operator, ``torch.ops.<package>.<name>.default``.
    """

    def __init__(
        self,
        family: str,
        schema: str,
        npu: tuple[str, ...],
        fake: Callable[..., Any],
        cpu: Callable[..., Any] | None,
    ) -> None:
        self.family = family
        self.namespace = family.split(".", 1)[0]
        self.name = schema.split("(", 1)[0]
        self.schema = schema
        self.npu = npu
        self.fake = fake
        self._cpu = cpu
        self._chosen: dict[Any, Choice] = {}
        library = _library(self.namespace)
        library.define(schema)
        library.impl(self.name, self._on_cpu, "CPU")
        library.impl(self.name, self._on_npu, "PrivateUse1")
        library.impl(self.name, self._by_definition, "CUDA")
        torch.library.register_fake(self.qualified_name, fake, lib=library)
        # Looked up now, since Dynamo traces no lazy property of Python 3.11.
        self.packet: Any = getattr(getattr(torch.ops, self.namespace), self.name).default

    @property
    def qualified_name(self) -> str:
        """``package::name``."""
        return f"{self.namespace}::{self.name}"

    @cached_property
    def reference(self) -> Callable[..., Any]:
        """The definition in torch."""
        return self._found("reference", self.name)

    @cached_property
    def description(self) -> str:
        """First line of the docstring of the call that people use."""
        call = getattr(importlib.import_module(self.family), self.name, None)
        return ((call.__doc__ or "") if call is not None else "").strip().split("\n", 1)[0]

    @property
    def mutates(self) -> bool:
        """Whether it writes one of its arguments."""
        return "!" in self.schema

    def __call__(self, *args: Any) -> Any:
        first = args[0]
        # The usual case first: models make hundreds of these calls in a step.
        if type(first) in _PLAIN and first.is_cpu and not _is_compiling():
            return self._run_on_cpu(*args)
        tensor = _first_tensor(args)
        if _is_compiling() or isinstance(tensor, FakeTensor):
            return self.packet(*args)
        device = tensor.device.type
        if device == "cpu":
            return self._on_cpu(*args)
        if device == "meta":
            return self.fake(*args)
        if device == "npu":
            return self._on_npu(*args)
        return self.reference(*args)

    def call_of(self, implementation: str) -> Callable[..., Any]:
        """Return the function behind one NPU implementation.

        Raises:
            InvalidInputError: the operator has no such implementation.
        """
        if implementation not in self.npu:
            raise InvalidInputError(
                f"implementation {implementation!r} of {self.name}",
                f"it has {', '.join(self.npu)}",
                "Choose one of them.",
            )
        if implementation == "torch":
            return self.reference
        return self._found({"torch_npu": "npu", "triton": "kernels"}[implementation], self.name)

    def supports(self, implementation: str, facts: DeviceFacts, *args: Any) -> Support:
        """Whether one implementation takes these arguments (tensors may be on ``meta``)."""
        if implementation == "torch":
            return SUPPORTED
        if implementation == "triton" and not facts.triton:
            return refuse(f"{facts.family} has no Triton compiler")
        suffix = "_triton" if implementation == "triton" else ""
        predicate = self._found("npu", f"supports_{self.name}{suffix}")
        answer: Support = predicate(facts, *args)
        return answer

    def choose(self, facts: DeviceFacts, *args: Any) -> Choice:
        """Choose the NPU implementation for these arguments (tensors may be on ``meta``).

        Raises:
            InvalidInputError: none takes them, or the one that ``ASCEND_OPS`` forces does not.
        """
        return choose(self, facts, args, forced_implementation(self.name, self.npu))

    def bind(self, facts: DeviceFacts, *args: Any) -> Callable[..., Any]:
        """Return the chosen implementation itself, for a layer that always passes such arguments.

        Args:
            facts: the family that will run it.
            args: arguments like those of the later calls; tensors may be on ``meta``.
        """
        implementation = self.choose(facts, *args).implementation
        if implementation == "triton" and (run := definition_runner()) is not None:
            return lambda *later: run(self.reference, later)
        return self.call_of(implementation)

    @cached_property
    def _run_on_cpu(self) -> Callable[..., Any]:
        return self._cpu if self._cpu is not None else self.reference

    def _on_cpu(self, *args: Any) -> Any:
        return self._run_on_cpu(*args)

    def _by_definition(self, *args: Any) -> Any:
        return self.reference(*args)

    def _on_npu(self, *args: Any) -> Any:
        facts = current_facts()
        key = (facts.family, forced_implementation(self.name, self.npu), _shape_key(args))
        choice = self._chosen.get(key)
        if choice is None:
            if len(self._chosen) >= _REMEMBERED_SHAPES:
                self._chosen.clear()
            choice = self._chosen[key] = self.choose(facts, *args)
        if choice.implementation == "triton" and (run := definition_runner()) is not None:
            return run(self.reference, args)
        return self.call_of(choice.implementation)(*args)

    def _found(self, module: str, attribute: str) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(
            importlib.import_module(f"{self.family}.{module}"), attribute
        )
        return found

    def __repr__(self) -> str:
        return f"<operator {self.qualified_name}>"


def declare(
    family: str,
    schema: str,
    *,
    npu: tuple[str, ...],
    fake: Callable[..., Any],
    cpu: Callable[..., Any] | None = None,
) -> Operator:
    """Declare an operator; see this module's docstring.

    Args:
        family: ``__name__`` of the family.
        schema: torch's notation, without the package, without keyword-only arguments.
        npu: names out of :data:`IMPLEMENTATIONS`, the preferred one first.
        fake: empty outputs of the right shapes and dtypes, from the schema's arguments.
        cpu: what runs on a CPU instead of the definition.

    Raises:
        InvalidInputError: an unknown implementation, or a name that is taken.
    """
    unknown = [name for name in npu if name not in IMPLEMENTATIONS]
    if unknown or not npu:
        raise InvalidInputError(
            f"npu={npu!r} of {schema}",
            f"it lists one or more of {', '.join(IMPLEMENTATIONS)}",
            "Correct the declaration.",
        )
    operator = Operator(family, schema, npu, fake, cpu)
    _operators[operator.qualified_name] = operator
    return operator


def operators(namespace: str) -> list[Operator]:
    """Every operator of a package, by name, its families imported.

    Args:
        namespace: the package's import name, for example ``"ascend_ops_core"``.
    """
    root = importlib.import_module(f"{namespace}.ops")
    for module in pkgutil.iter_modules(root.__path__, f"{root.__name__}."):
        importlib.import_module(module.name)
    found = [one for one in _operators.values() if one.namespace == namespace]
    return sorted(found, key=lambda one: one.name)


def find(qualified_name: str) -> Operator:
    """The operator ``package::name``.

    Raises:
        InvalidInputError: there is none.
    """
    namespace, _, name = qualified_name.partition("::")
    for one in operators(namespace):
        if one.name == name:
            return one
    raise InvalidInputError(
        f"operator {qualified_name!r}", "it is not declared", "See `ascend-ops list`."
    )


def _library(namespace: str) -> torch.library.Library:
    if namespace not in _libraries:
        _libraries[namespace] = torch.library.Library(namespace, "FRAGMENT")
    return _libraries[namespace]


def _first_tensor(args: tuple[Any, ...]) -> torch.Tensor:
    for value in args:
        if isinstance(value, torch.Tensor):
            return value
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
            return value[0]
    raise InvalidInputError("arguments without a tensor", "an operator needs one", "Pass tensors.")


def _shape_key(args: tuple[Any, ...]) -> Any:
    key: list[Any] = []
    for value in args:
        if isinstance(value, torch.Tensor):
            key.append((value.dtype, value.shape, value.is_contiguous()))
        elif isinstance(value, (list, tuple)):
            key.append(_shape_key(tuple(value)))
        else:
            key.append(value)
    return tuple(key)
