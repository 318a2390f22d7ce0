"""The device family that operators are chosen and tiled for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ascend_ops_core.devices.facts import DeviceFacts, facts_of

_chosen: ContextVar[str | None] = ContextVar("ascend_device_family", default=None)


def current_facts() -> DeviceFacts:
    """Return the facts of the family in use: the one of :func:`device_family`, else A2."""
    return facts_of(_chosen.get() or "A2")


@contextmanager
def device_family(family: str) -> Iterator[DeviceFacts]:
    """Choose and tile operators for ``family`` inside this block."""
    facts = facts_of(family)
    token = _chosen.set(family)
    try:
        yield facts
    finally:
        _chosen.reset(token)
