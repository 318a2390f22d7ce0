"""Running the meta registrations of a wheel without the package that they import."""

from __future__ import annotations

import enum
import re
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

from ascend_ops_core.testing.contract.wheel import METAS, WheelFiles

MetaKernel = Callable[..., Any]

CANN_VERSION = "9.2.0"
"""The CANN whose presence the meta kernels are told of."""

SOC_VERSIONS = {"310P": 200, "A2": 220, "A3": 250, "A5": 260}
"""What torch_npu's ``get_soc_version()`` returns, by device family."""


class ErrCode(enum.Enum):
    """Names with which the wheels' meta kernels raise."""

    PARAM = 1
    TYPE = 2
    VALUE = 3
    PTR = 4
    INTERNAL = 5
    MEMORY = 6
    NOT_SUPPORT = 7
    NOT_FOUND = 8
    UNAVAIL = 9


@dataclass
class MetaKernels:
    """What the wheel's files registered.

    Attributes:
        kernels: by operator name, overload included.
        foreign: registrations for other namespaces, such as ``aten::_convolution``; they are left
            out, since they would change torch itself.
    """

    kernels: dict[str, MetaKernel] = field(default_factory=dict)
    foreign: list[str] = field(default_factory=list)


def collect(files: WheelFiles, codes: dict[str, int], family: Callable[[], str]) -> MetaKernels:
    """Execute the wheel's meta registrations and collect their kernels.

    Args:
        files: the wheel.
        codes: attributes of ``torch_npu`` that name dtypes.
        family: asked by the kernels, when they run, for the device family.

    Raises:
        Exception: what the wheel's own code raised; the wheel then does not fit this torch.
    """
    found = MetaKernels()
    with _stub(files.version, codes, family), _collecting(found):
        for name in METAS:
            module = name.removesuffix(".py").replace("/", ".")
            # The files are read from the wheel that the caller named; running them is the purpose.
            space = {"__name__": f"torch_npu.{module}", "__file__": f"{files.origin}/{name}"}
            exec(compile(files.read(name), space["__file__"], "exec"), space)
    return found


class _RecordingLibrary:
    """Stands for ``torch.library.Library`` while the wheel's files run."""

    def __init__(self, namespace: str, kind: str, dispatch_key: str = "") -> None:
        self.namespace = namespace
        self.dispatch_key = dispatch_key


@contextmanager
def _collecting(found: MetaKernels) -> Iterator[None]:
    def impl(library: _RecordingLibrary, name: str, dispatch_key: str = "") -> Any:
        def register(kernel: MetaKernel) -> MetaKernel:
            if library.namespace == "npu" and (library.dispatch_key or dispatch_key) == "Meta":
                found.kernels[name] = kernel
            else:
                found.foreign.append(f"{library.namespace}::{name}")
            return kernel

        return register

    def register_fake(qualified: str, *_: Any, **__: Any) -> Any:
        namespace, name = qualified.split("::")
        return impl(_RecordingLibrary(namespace, "IMPL", "Meta"), name)

    with (
        mock.patch.object(torch.library, "Library", _RecordingLibrary),
        mock.patch.object(torch.library, "impl", impl),
        mock.patch.object(torch.library, "register_fake", register_fake),
    ):
        yield


@contextmanager
def _stub(version: str, codes: dict[str, int], family: Callable[[], str]) -> Iterator[None]:
    """Let ``import torch_npu`` give a module with only what meta registrations use."""

    def soc_version() -> int:
        return SOC_VERSIONS[family()]

    def at_least(wanted: str, module: str = "CANN") -> bool:
        return _ordered(CANN_VERSION) >= _ordered(wanted)

    def cann_version(module: str = "CANN") -> str:
        return CANN_VERSION

    def message(code: ErrCode) -> str:
        return f" [{code.name}, from the meta kernel of torch_npu {version}]"

    contents: dict[str, dict[str, Any]] = {
        "torch_npu": {"__version__": version, **codes},
        "torch_npu.utils": {},
        "torch_npu.utils._error_code": {
            "ErrCode": ErrCode,
            "ops_error": message,
            "pta_error": message,
        },
        "torch_npu.npu": {},
        "torch_npu.npu.utils": {
            "get_cann_version": cann_version,
            "_is_gte_cann_version": at_least,
            "get_soc_version": soc_version,
        },
        "torch_npu.npu._backends": {"get_soc_version": soc_version},
    }
    modules = {}
    for name, values in contents.items():
        module = modules[name] = types.ModuleType(name)
        module.__dict__.update(values, __path__=[])
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
    with mock.patch.dict(sys.modules, modules):
        yield


def _ordered(version: str) -> tuple[int, ...]:
    """Numbers of a CANN version; a letter (alpha, RC) sorts before the release."""
    parts = re.findall(r"\d+|[a-zA-Z]+", version)
    return tuple(int(part) if part.isdigit() else -1 for part in parts)
