"""The one form in which every package of the stack refuses bad input."""

from __future__ import annotations


class InvalidInputError(ValueError):
    """A value that cannot be accepted.

    The message always names the value that was given, the limit that it breaks and what the
    user can do about it.

    Args:
        value: what was given, with its name, for example ``"tensor_parallel_size=3"``.
        limit: the rule that it breaks.
        remedy: what to change.
    """

    def __init__(self, value: str, limit: str, remedy: str) -> None:
        self.value = value
        self.limit = limit
        self.remedy = remedy
        super().__init__(f"{value}: {limit}. {remedy}")
