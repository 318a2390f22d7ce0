"""From a Triton kernel to the Ascend front end's linalg module, inside this process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.errors import InvalidInputError

_SWITCH = "is_compile_on_910_95"


@dataclass
class Lowered:
    """How far the front end came.

    Attributes:
        stage: ``"none"``, ``"ttir"`` or ``"linalg"``.
        ttir: Triton's IR as text.
        linalg: the linalg module as text.
        options: the compiler options that hold, defaults included.
        mix_mode: kind of cores that the kernel needs.
        error: why it ended before linalg; empty if it did not.
    """

    stage: str = "none"
    ttir: str = ""
    linalg: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    mix_mode: str = ""
    error: str = ""


def lower(
    kernel: Any,
    signature: dict[str, str],
    constants: dict[str, Any],
    facts: DeviceFacts,
    options: dict[str, Any],
) -> Lowered:
    """Lower a kernel for a family.

    Args:
        kernel: the ``@triton.jit`` function.
        signature: Triton's types of its run-time arguments by name.
        constants: its constants by name; those with a default may be missing.
        facts: the device family.
        options: fields of triton-ascend's ``NPUOptions`` that differ from the default.

    Raises:
        InvalidInputError: an argument of the kernel is neither typed nor constant, an option is
            not known.
    """
    import triton.backends.ascend.compiler as ascend
    from triton.backends.compiler import GPUTarget

    function = _jit_function(kernel)
    signature, constants = _bound(function, signature, constants)
    a5 = facts.family == "A5"
    unknown = set(options) - set(ascend.NPUOptions.__dataclass_fields__)
    if unknown:
        raise InvalidInputError(
            f"option {sorted(unknown)[0]!r}",
            f"triton-ascend has {', '.join(ascend.NPUOptions.__dataclass_fields__)}",
            "Choose one of them.",
        )
    backend = ascend.AscendBackend(GPUTarget("npu", facts.compile_target.value, 0))
    defaults = {
        "compile_on_910_95": a5,
        "multibuffer": not a5,
        "enable_auto_bind_sub_block": not a5,
        "enable_select_analysis": a5,
    }
    npu_options = backend.parse_options({**defaults, **options})
    done = Lowered(options=dict(npu_options.__dict__))
    with _switched(a5):
        try:
            module = _triton_ir(backend, function, signature, constants, npu_options)
            metadata = {"target": backend.target, **npu_options.__dict__}
            module = ascend.make_ttir(module, metadata, npu_options)
            done.ttir, done.stage = str(module), "ttir"
            linalg = ascend.ttir_to_linalg(module, metadata, npu_options, named_ops=True)
            done.linalg, metadata = ascend._parse_linalg_metadata(linalg, metadata)
            done.mix_mode, done.stage = metadata["mix_mode"], "linalg"
        except subprocess.CalledProcessError as error:
            stderr = (error.stderr or b"").decode(errors="replace").strip()
            done.error = stderr or f"the front end ended with status {error.returncode}"
        except Exception as error:  # Triton and its C++ part raise many kinds
            done.error = f"{type(error).__name__}: {error}"
    return done


def _jit_function(kernel: Any) -> Any:
    import triton

    while not isinstance(kernel, triton.runtime.jit.JITFunction):
        if not hasattr(kernel, "fn"):
            raise InvalidInputError(
                f"kernel {kernel!r}", "it must be a @triton.jit function", "Decorate it."
            )
        kernel = kernel.fn
    return kernel


def _bound(
    function: Any, signature: dict[str, str], constants: dict[str, Any]
) -> tuple[dict[str, str], dict[str, Any]]:
    names = function.arg_names
    strangers = (set(signature) | set(constants)) - set(names)
    defaults = {
        parameter.name: parameter.default
        for parameter in function.params
        if parameter.has_default and parameter.name not in signature
    }
    constants = {**defaults, **constants}
    missing = [name for name in names if name not in signature and name not in constants]
    if strangers or missing:
        value = f"without {missing[0]}" if missing else f"with {sorted(strangers)[0]}"
        raise InvalidInputError(
            f"{function.__name__} {value}",
            f"its arguments are {', '.join(names)}",
            "Give each a type or a constant.",
        )
    ordered = {name: signature[name] for name in names if name not in constants}
    return ordered, constants


def _triton_ir(
    backend: Any, function: Any, signature: dict[str, str], constants: dict[str, Any], options: Any
) -> Any:
    import triton.backends.ascend.compiler as ascend
    from triton._C.libtriton import ir
    from triton.compiler import ASTSource

    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    attributes = ascend.AscendAttrsDescriptor()
    # torch allocates at multiples of 16 bytes and more, as Triton finds at a launch.
    pointers = [i for i, name in enumerate(function.arg_names) if "*" in signature.get(name, "")]
    attributes.arg_properties["tt.divisibility"] = pointers
    attributes._init_slots()
    source = ASTSource(fn=function, signature=signature, constants=constants, attrs=attributes)
    return source.make_ir(
        options, backend.get_codegen_implementation(), backend.get_module_map(), context
    )


@contextmanager
def _switched(a5: bool) -> Iterator[None]:
    """Let triton-ascend know the family: its modules hold the answer as a constant, False."""
    holders = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("triton.") and hasattr(module, _SWITCH)
    ]
    before = [getattr(module, _SWITCH) for module in holders]
    for module in holders:
        setattr(module, _SWITCH, a5)
    try:
        yield
    finally:
        for module, value in zip(holders, before, strict=True):
            setattr(module, _SWITCH, value)
