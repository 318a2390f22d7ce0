"""What DeepSeek's configurations need beside :class:`ConfigReader`: YaRN in their form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ascend_ops_core.checkpoint.config_reader import FIX_CONFIG, as_number
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.rotary import YarnScaling, yarn_attention_factor, yarn_mscale

__all__ = ["YarnRope"]


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
