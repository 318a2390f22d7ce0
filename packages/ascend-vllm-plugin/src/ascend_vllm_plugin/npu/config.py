"""AscendConfig: what the user may set through vLLM's ``additional_config``."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from ascend_attention.layers.output_projection import VARIANTS
from ascend_ops_core.devices import FAMILIES, use_family
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.selection import VARIABLE
from pydantic import BaseModel, ConfigDict, Field, ValidationError

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class AscendConfig(BaseModel):
    """Switches of the NPU platform, for example ``--additional-config '{"device_family": "A3"}'``.

    Attributes:
        device_family: device family that operators are chosen and tiled for, and whose cache layout
            is used; by default that of the NPU that is found. Needed for a soc that is not known.
        operators: implementation by operator, for example ``{"rms_norm": "triton"}``: forces what
            ``ASCEND_OPS`` forces, and goes before it.
        o_proj: variant of DeepSeek-V4's output projection: ``"plain"``, ``"otp"``, ``"olora_tp"``,
            on A5 the same in MXFP8, ``"fp8"``, ``"otp_fp8"`` and ``"olora_tp_fp8"``; or ``"auto"``
            for the unquantised one that the parallel sizes ask for; see
            :data:`ascend_attention.layers.output_projection.VARIANTS`.
        o_proj_tensor_parallel_size: data-parallel replicas that share an output projection by
            exchanging their tokens (``otp``, ``otp_fp8``); 1 for none.
        cache_dtype: ``"family"``, the default: caches hold rows as the device family keeps them,
            indexer keys in eight bits with a scale each, and on A5 key-value rows in eight bits
            too. ``"model"``: they keep the model's dtype, which takes more memory and rounds less.
        latent_cache_dtype: ``"int8"``: models with sparse latent attention (DeepSeek-V3.2, GLM-5)
            cache latents in eight bits, with a scale for every 128 values. ``"model"``: in the
            model's dtype. The default is what the checkpoint wants (ModelSlim's C8 and FAKQuant),
            or the model's dtype.
        draft_acceptance_floor: share of first drafted tokens that are right below which a warning
            is given, 0 for none; by default 0.2 with a draft model. Holds on a CPU as well.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    device_family: str | None = Field(default=None)
    operators: dict[str, str] = Field(default_factory=dict)
    o_proj: str = Field(default="auto")
    o_proj_tensor_parallel_size: int = Field(default=1, ge=1, strict=True)
    cache_dtype: Literal["family", "model"] = "family"
    latent_cache_dtype: Literal["model", "int8"] | None = None
    draft_acceptance_floor: float | None = Field(default=None, ge=0, le=1)

    @classmethod
    def of(cls, vllm_config: VllmConfig) -> AscendConfig:
        """Parse an engine's ``additional_config``.

        Raises:
            InvalidInputError: see :meth:`parse`.
        """
        given = vllm_config.additional_config
        return cls.parse(given if isinstance(given, Mapping) else {})

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> AscendConfig:
        """Check keys and values.

        Raises:
            InvalidInputError: an unknown key, with the closest known ones, or a value that does
                not fit.
        """
        for key in given:
            if key not in cls.model_fields:
                close = difflib.get_close_matches(str(key), cls.model_fields, n=3, cutoff=0.5)
                known = ", ".join(cls.model_fields)
                meant = f"Did you mean {' or '.join(close)}?" if close else "Remove it."
                raise InvalidInputError(
                    f"additional_config key {key!r}", f"known are {known}", meant
                )
        try:
            parsed = cls.model_validate(dict(given))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise InvalidInputError(
                f"additional_config {place}={first['input']!r}", first["msg"], "Correct the value."
            ) from error
        if parsed.device_family is not None and parsed.device_family not in FAMILIES:
            raise InvalidInputError(
                f"additional_config device_family={parsed.device_family!r}",
                f"known are {', '.join(FAMILIES)}",
                "Choose one of them, or leave it out.",
            )
        variants = ["auto", *(one.name for one in VARIANTS)]
        if parsed.o_proj not in variants:
            raise InvalidInputError(
                f"additional_config o_proj={parsed.o_proj!r}",
                f"known are {', '.join(variants)}",
                "Choose one of them, or leave it out.",
            )
        return parsed

    def apply(self) -> None:
        """Make the settings hold for this process; a default changes nothing."""
        if self.device_family is not None:
            use_family(self.device_family)
        if self.operators:
            ours = [f"{name}={chosen}" for name, chosen in self.operators.items()]
            others = os.environ.get(VARIABLE, "")
            # The first entry of an operator holds.
            os.environ[VARIABLE] = ",".join(
                dict.fromkeys([*ours, *filter(None, others.split(","))])
            )
