"""Calls of kernels whose code stays apart from the caller's.

numba gives every kernel a copy of each kernel that it calls, and so on down, and optimises and
translates all of it again: the work grows with the depth of the calls. A kernel that is called
apart is compiled once, and others jump to it. Small kernels, which are worth being inlined, are
better called directly.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
from numba import types
from numba.core import cgutils
from numba.core.compiler import CompileResult
from numba.extending import intrinsic


def _keep_what_loads() -> None:
    """Let kernels that come out of a cache tell their callers what to load before them.

    numba hands that from the called kernel to the caller, but only from one that it has compiled
    in the same process: a caller of one from the cache would be cached without it.
    """
    rebuild = CompileResult._rebuild

    def rebuilt(cls: Any, *state: Any) -> Any:
        result = rebuild(*state)
        result.library._reload_init.update(result.reload_init or ())
        return result

    CompileResult._rebuild = classmethod(rebuilt)


_keep_what_loads()


@dataclass(frozen=True)
class _Loaded:
    """Loads or compiles a kernel for some types, and gives its address to LLVM.

    numba keeps such objects with what it caches of a caller, and calls them before it loads that.

    Attributes:
        module: the kernel's module.
        name: its name there.
        given: types of its arguments.
    """

    module: str
    name: str
    given: tuple[Any, ...]

    @property
    def symbol(self) -> str:
        """What callers call the code; the same in every process."""
        given = hashlib.sha256(repr(self.given).encode()).hexdigest()[:16]
        return f"apart.{self.module}.{self.name}.{given}"

    def __call__(self) -> Any:
        """numba's result of the compilation."""
        kernel = getattr(importlib.import_module(self.module), self.name)
        kernel.compile(self.given)
        compiled = kernel.overloads[self.given]
        address = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
        llvm.add_symbol(self.symbol, address)
        return compiled


def apart(kernel: Any) -> Callable[..., Any]:
    """What other kernels call instead of ``kernel``, with the same arguments, to keep it apart.

    Unsigned integers of 64 bits are passed as signed ones. Python cannot call what is returned; its
    attribute ``kernel`` is what was given.

    Args:
        kernel: made by ``njit`` with a cache, under its own name in its module.
    """
    function = kernel.py_func
    module, name = function.__module__, function.__name__

    def call(typingctx: Any, *given: Any) -> Any:
        # Whether an index is known to be positive is no reason to compile the kernel again.
        plain = tuple(types.int64 if one == types.uint64 else one for one in given)
        signature = types.Dispatcher(kernel).get_call_type(typingctx, plain, {})
        loaded = _Loaded(module, name, tuple(signature.args))

        def codegen(context: Any, builder: Any, called: Any, values: Any) -> Any:
            compiled = loaded()
            context.active_code_library._reload_init.add(loaded)
            result, wanted = compiled.signature.return_type, compiled.signature.args
            kind = context.call_conv.get_function_type(result, wanted)
            code = cgutils.get_or_insert_function(builder.module, kind, loaded.symbol)
            passed = [
                context.cast(builder, value, has, wants)
                for value, has, wants in zip(values, called.args, wanted, strict=True)
            ]
            status, returned = context.call_conv.call_function(
                builder, code, result, wanted, passed
            )
            with cgutils.if_unlikely(builder, status.is_error):
                context.call_conv.return_status_propagate(builder, status)
            return context.cast(builder, returned, result, called.return_type)

        return signature.return_type(*given), codegen

    # numba asks for the names of the arguments, and the cache for the module of what is called.
    first = inspect.Parameter("typingctx", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    call.__module__, call.__name__, call.__doc__ = module, name, function.__doc__
    call.__signature__ = inspect.Signature([first, *parameters])  # type: ignore[attr-defined]
    made = intrinsic(call)
    made.kernel = kernel
    called: Callable[..., Any] = made
    return called
