"""Says so when drafts are hardly ever right, which nothing else shows: the text stays the same.

Upstream symbol (0.27.1): ``SpecDecodingLogging`` of ``vllm.v1.spec_decode.metrics``, which logs
every few seconds how many drafts were right, by position. The counters of the same figures are
``vllm:spec_decode_num_accepted_tokens_per_pos`` and ``vllm:spec_decode_num_drafts``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ascend_ops_core.errors import InvalidInputError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger(__name__)

KEY = "draft_acceptance_floor"
"""Name of the setting in vLLM's ``additional_config``."""

DEFAULT_FLOOR = 0.2
"""For methods with a draft model; what follows repeated text may rightly be rare."""

LEAST_DRAFTS = 200
"""Drafts that are waited for before their share is judged."""

_BY_TEXT = ("ngram", "ngram_gpu", "suffix")

_CAUSES = (
    "the draft belongs to another target, or to another version of it; target layers that the "
    "draft reads are numbered otherwise; the target is rotated (QuaRot) and the draft is not; "
    "contexts are longer than the draft was trained for; the text is of a kind that it was not "
    "trained on; a high temperature"
)

_floor = 0.0


def floor_of(vllm_config: VllmConfig) -> float:
    """Share of first drafted tokens below which a warning is given; 0 for none.

    Raises:
        InvalidInputError: the setting is no share.
    """
    speculative = vllm_config.speculative_config
    given = vllm_config.additional_config
    default = 0.0 if speculative is None or speculative.method in _BY_TEXT else DEFAULT_FLOOR
    floor = given.get(KEY) if isinstance(given, Mapping) else None
    if floor is None:
        return default
    number = isinstance(floor, (int, float)) and not isinstance(floor, bool)
    if not number or not 0 <= floor <= 1:
        raise InvalidInputError(
            f"additional_config {KEY}={floor!r}", "a share from 0 to 1", "0 switches it off."
        )
    return float(floor)


def set_floor(floor: float) -> None:
    """Set the share for this process."""
    global _floor
    _floor = floor


class AcceptanceWatch:
    """Counts drafts and warns once each time their acceptance falls below the floor."""

    def __init__(self) -> None:
        self._drafts = self._right = 0
        self._low = False

    def observe(self, drafts: int, right_by_position: list[int]) -> None:
        """Take in what a step has verified.

        Args:
            drafts: requests that had drafts.
            right_by_position: accepted tokens, by their place in the draft.
        """
        self._drafts += drafts
        self._right += right_by_position[0] if right_by_position else 0
        if self._drafts < LEAST_DRAFTS:
            return
        share = self._right / self._drafts
        low = share < _floor
        if low and not self._low:
            logger.warning(
                "only %.1f %% of %d first drafted tokens were right, less than %s=%g. Text is not "
                "affected, speed is. Likely causes: %s.",
                100 * share,
                self._drafts,
                KEY,
                _floor,
                _CAUSES,
            )
        self._low = low
        self._drafts = self._right = 0


def watch_acceptance() -> None:
    """Let vLLM's own logging of drafts warn as well; may be called repeatedly.

    Raises:
        AttributeError: vLLM has no class of that name there any more.
    """
    from vllm.v1.spec_decode.metrics import SpecDecodingLogging

    if hasattr(SpecDecodingLogging, "watch"):
        return
    observe = SpecDecodingLogging.observe

    def observe_and_watch(self: Any, stats: Any) -> None:
        if "watch" not in vars(self):
            self.watch = AcceptanceWatch()
        self.watch.observe(stats.num_drafts, stats.num_accepted_tokens_per_pos)
        observe(self, stats)

    SpecDecodingLogging.watch = None
    SpecDecodingLogging.observe = observe_and_watch
