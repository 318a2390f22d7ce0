"""What Triton's interpreter works out anew at every call, worked out once.

Whenever it enters a kernel, or a function that a kernel calls, it looks through the members of
``triton.language`` for those that it replaces, and every value gets a shape of new objects. That is
most of the time of a small launch. Here what replaces what is remembered, and shapes are shared;
what a kernel computes and what is refused stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FunctionType
from typing import Any

_ABSENT = object()

_Replacement = tuple[Any, str, Any]
"""Owner, name of its attribute, and value."""


@contextmanager
def language_patched_once() -> Iterator[None]:
    """Replace what the interpreter replaces for one launch; called functions find it done."""
    replacements = _replacements()
    kept = [(owner, name, vars(owner).get(name, _ABSENT)) for owner, name, _ in replacements]
    for owner, name, value in replacements:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in kept:
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


@cache
def _replacements() -> list[_Replacement]:
    import triton.language as tl
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    # Functions of Triton's own library see the language as its core.
    function = FunctionType((lambda: None).__code__, {"tl": tl, "core": tl.core})
    scope = interpreter._patch_lang(function)
    places = {(id(owner), name): (owner, name) for owner, name, _ in scope._changes}
    found = [(owner, name, getattr(owner, name)) for owner, name in places.values()]
    scope.restore()
    return [
        *found,
        (interpreter, "_patch_lang", lambda function: scope),
        (interpreter, "_get_np_dtype", _remembered_dtypes(tl, interpreter._get_np_dtype)),
        (tl.dtype, "__eq__", _equal_if_same(tl.dtype.__eq__)),
        (tl.block_type, "__init__", _block_type_init(tl, tl.block_type.__init__)),
        (tl.tensor, "__init__", _tensor_init(tl)),
        (
            TritonSemantic,
            "broadcast_impl_value",
            _broadcast_unless_alike(TritonSemantic.broadcast_impl_value),
        ),
        # Ten operations whose outcome nobody looks at: assertions are off in the interpreter.
        (TritonSemantic, "binary_op_sanitize_overflow_impl", lambda *operands: None),
    ]


def _remembered_dtypes(tl: Any, work_out: Callable[[Any], Any]) -> Callable[[Any], Any]:
    known: dict[Any, Any] = {}

    def numpy_dtype(kind: Any) -> Any:
        element = kind.element_ty if isinstance(kind, tl.block_type) else kind
        # Pointers have no hash.
        if isinstance(element, tl.pointer_type):
            return work_out(element)
        found = known.get(element)
        if found is None:
            found = known[element] = work_out(element)
        return found

    return numpy_dtype


def _equal_if_same(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda self, other: self is other or compare(self, other)


def _block_type_init(tl: Any, init: Callable[..., None]) -> Callable[..., None]:
    """Shares the shape of every type of the same shape."""
    known: dict[tuple[int, ...], tuple[Any, int, str]] = {}

    def shared(self: Any, element_ty: Any, shape: Any) -> None:
        values = shape.values if isinstance(shape, tl.tuple) else shape
        key = tuple(one.value if isinstance(one, tl.constexpr) else one for one in values)
        if key not in known or not all(type(one) is int for one in key):
            init(self, element_ty, shape)
            known[key] = self.shape, self.numel, str(self.shape)
            return
        self.element_ty = element_ty
        self.shape, self.numel, text = known[key]
        self.name = f"<{text}, {element_ty}>"

    return shared


def _tensor_init(tl: Any) -> Callable[..., None]:
    """Shares the shape of every tensor of the same shape."""
    one = tl.tuple([]), tl.constexpr(1)
    known: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def shared(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        if not type.is_block():
            self.shape, self.numel = one
            return
        key = tuple(type.shape.values)
        if key not in known:
            shape = tl.tuple([tl.constexpr(size) for size in key])
            known[key] = shape, tl.constexpr(type.numel)
        self.shape, self.numel = known[key]

    return shared


def _broadcast_unless_alike(broadcast: Callable[..., Any]) -> Callable[..., Any]:
    def unless_alike(self: Any, lhs: Any, rhs: Any) -> Any:
        a, b = lhs.type, rhs.type
        if a.is_block() and b.is_block() and a.shape.values == b.shape.values:
            return lhs, rhs
        return broadcast(self, lhs, rhs)

    return unless_alike
