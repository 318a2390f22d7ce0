"""Reads a model's configuration, whichever form it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.rotary import YarnScaling, yarn_attention_factor, yarn_mscale

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


class YarnRope:
    """A rotary embedding that YaRN may have extended, in DeepSeek's form.

    Args:
        parameters: of :meth:`ConfigReader.rope_parameters`.

    Attributes:
        theta: base of the frequencies.
        scaling: context extension, or None.
        table_scale: factor on cosine and sine.
        score_scale: factor on attention's scale (``mscale_all_dim`` squared).

    Raises:
        InvalidInputError: another kind of scaling, or one without its figures.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self.theta = float(parameters["rope_theta"])
        self.scaling: YarnScaling | None = None
        self.table_scale = self.score_scale = 1.0
        kind = parameters.get("rope_type", parameters.get("type", "default"))
        if kind == "default":
            return
        # vLLM rewrites the name of DeepSeek's form.
        if kind not in ("yarn", "deepseek_yarn"):
            raise InvalidInputError(
                f"rope scaling of type {kind!r}",
                "this model uses 'yarn' or none",
                "Correct rope_scaling in config.json.",
            )
        missing = [
            key for key in ("factor", "original_max_position_embeddings") if key not in parameters
        ]
        if missing:
            raise InvalidInputError(
                f"rope_scaling without {', '.join(missing)}", "YaRN needs it", FIX_CONFIG
            )
        factor = as_number("rope_scaling factor", parameters["factor"])
        self.scaling = YarnScaling(
            factor=factor,
            original_max_position=int(parameters["original_max_position_embeddings"]),
            beta_fast=as_number("beta_fast", parameters.get("beta_fast") or 32),
            beta_slow=as_number("beta_slow", parameters.get("beta_slow") or 1),
        )
        mscale, whole = parameters.get("mscale"), parameters.get("mscale_all_dim")
        given = parameters.get("attention_factor")
        # One of the two weights alone is no pair to divide: YaRN's own factor holds then.
        pair = {"mscale": mscale, "mscale_all_dim": whole} if mscale and whole else {}
        self.table_scale = yarn_attention_factor(factor, **pair) if given is None else given
        if whole:
            self.score_scale = yarn_mscale(factor, as_number("mscale_all_dim", whole)) ** 2


def as_number(name: str, value: Any) -> float:
    """``value`` as a float.

    Raises:
        InvalidInputError: it is no finite number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 != value % 1:
        raise InvalidInputError(f"{name}={value!r}", "it must be a number", FIX_CONFIG)
    return float(value)
