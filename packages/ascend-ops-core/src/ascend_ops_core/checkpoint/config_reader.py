"""Reads a model's configuration, whichever form it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ascend_ops_core.errors import InvalidInputError

__all__ = ["FIX_CONFIG", "ConfigReader", "as_number"]

FIX_CONFIG = "Correct config.json."


class ConfigReader:
    """Values of a Hugging Face config object or a mapping.

    Args:
        config: either of them.
        model: its name for messages.
    """

    def __init__(self, config: Any, model: str) -> None:
        self._config = config
        self.model = model

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or ``default`` where it is absent or null."""
        if isinstance(self._config, Mapping):
            value = self._config.get(key)
        else:
            value = getattr(self._config, key, None)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None, *, least: int = 0) -> int:
        """A whole number.

        Args:
            key: name of the value.
            default: taken where it is absent; None refuses that.
            least: smallest value that makes sense.

        Raises:
            InvalidInputError: it is missing, no whole number, or smaller.
        """
        value = self.get(key, default)
        if value is None:
            raise InvalidInputError(
                f"config without {key!r}", f"{self.model} needs it", "Add it to config.json."
            )
        # A remainder of NaN, which infinity also leaves, is true.
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or value % 1 or value < least:
            raise InvalidInputError(
                f"{key}={value!r}", f"it must be an integer of at least {least}", FIX_CONFIG
            )
        return int(value)

    def number(self, key: str, default: float) -> float:
        """A number.

        Raises:
            InvalidInputError: it is something else, or not finite.
        """
        return as_number(key, self.get(key, default))

    def rope_parameters(self) -> Mapping[str, Any]:
        """Parameters of the rotary embedding, with ``rope_theta`` among them in either spelling."""
        given = self.get("rope_parameters") or self.get("rope_scaling") or {}
        if not isinstance(given, Mapping):
            raise InvalidInputError(
                f"rope_scaling={given!r}", "it is an object of named values", FIX_CONFIG
            )
        theta = given.get("rope_theta") or self.get("rope_theta", 10000.0)
        return {**given, "rope_theta": as_number("rope_theta", theta)}


def as_number(name: str, value: Any) -> float:
    """``value`` as a float.

    Raises:
        InvalidInputError: it is no finite number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 != value % 1:
        raise InvalidInputError(f"{name}={value!r}", "it must be a number", FIX_CONFIG)
    return float(value)
