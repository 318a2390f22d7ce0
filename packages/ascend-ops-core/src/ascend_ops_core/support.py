"""Whether an implementation can take given inputs, and why not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Support:
    """The answer of a ``supports_...`` predicate.

    Attributes:
        reason: the limit that the inputs break, with value and limit; empty when they fit.
    """

    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason


SUPPORTED = Support()


def refuse(reason: str) -> Support:
    """Return a refusal.

    Args:
        reason: names the value and the limit, for example ``"dtype int8, the op takes float16"``.
    """
    if not reason:
        raise ValueError("a refusal needs a reason")
    return Support(reason)


def first_refusal(*checks: tuple[bool, str]) -> Support:
    """Return the refusal of the first check that does not hold, else support.

    Args:
        checks: pairs of (holds, reason if it does not).
    """
    for holds, reason in checks:
        if not holds:
            return refuse(reason)
    return SUPPORTED
