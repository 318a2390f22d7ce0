"""The device family that operators are chosen and tiled for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ascend_ops_core.devices.detect import detected
from ascend_ops_core.devices.facts import DeviceFacts, facts_of

DEFAULT_FAMILY = "A2"
"""Family tiled for where no NPU is: the one with the smallest buffers, so its tiles fit all."""

_chosen: ContextVar[str | None] = ContextVar("ascend_device_family", default=None)
_of_process: str | None = None


def chosen_family() -> str | None:
    """Return the family of :func:`device_family`'s block, else of :func:`use_family`, if any."""
    return _chosen.get() or _of_process


def use_family(family: str | None) -> None:
    """Choose the family for this process, in all its threads; None goes back to detection.

    Raises:
        InvalidInputError: the family is not known.
    """
    global _of_process
    if family is not None:
        facts_of(family)
    _of_process = family


def current_facts() -> DeviceFacts:
    """Return the facts in use: of :func:`chosen_family`, else of the NPU that is here.

    Without either, those of :data:`DEFAULT_FAMILY`.
    """
    family = chosen_family()
    if family is not None:
        return facts_of(family)
    return detected().facts or facts_of(DEFAULT_FAMILY)


@contextmanager
def device_family(family: str) -> Iterator[DeviceFacts]:
    """Choose and tile operators for ``family`` inside this block."""
    facts = facts_of(family)
    token = _chosen.set(family)
    try:
        yield facts
    finally:
        _chosen.reset(token)
