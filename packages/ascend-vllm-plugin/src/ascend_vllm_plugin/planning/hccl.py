"""HCCL's buffer: the variable that sets it, and its default."""

from __future__ import annotations

VARIABLE = "HCCL_BUFFSIZE"
DEFAULT_MIB = 200
SOURCE = (
    f"{VARIABLE} in Huawei's CANN 8.5 documentation: 200 MB unless set, twice that for every "
    "communicator"
)


def buffer_mib(text: str | None) -> int | None:
    """The size in MiB that the variable's value means, or None if it means nothing.

    Args:
        text: the value, or None if it is unset.
    """
    if text is None:
        return DEFAULT_MIB
    size = int(text) if text.strip().isdecimal() else 0
    return size or None
