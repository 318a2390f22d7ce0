"""Which decode steps are captured as graphs, and how many graphs a device can hold.

The platform trims an engine's sizes by this, and the planner counts by it. Without vLLM's import.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

STREAM_BUDGET = 1800
SOURCE = (
    "a device has 2048 streams, of which vllm-ascend gives graphs 1800 (its issue 8585); "
    "not run on hardware"
)
STREAMS_OF_A_GRAPH = 3
"""The main stream, the indexer's, and the one beside the query's second projection."""

_MOST_TOKENS = 512
_SMALL, _FINE, _COARSE, _COARSE_FROM = (1, 2, 4), 8, 16, 256


@dataclass(frozen=True)
class CapturePlan:
    """Sizes of captured decode steps.

    Attributes:
        sizes: padded numbers of tokens, ascending; empty without graphs.
        dropped: sizes that the device has no streams for.
        streams: streams that one graph holds.
    """

    sizes: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    streams: int = STREAMS_OF_A_GRAPH

    @property
    def reason(self) -> str:
        """Why sizes were dropped, and what follows; empty if none was."""
        if not self.dropped:
            return ""
        asked = len(self.sizes) + len(self.dropped)
        return (
            f"{asked} captured sizes of {self.streams} streams each exceed the budget of "
            f"{STREAM_BUDGET} streams ({SOURCE}): {len(self.sizes)} are captured, and other steps "
            "are padded to the next larger one. List fewer cudagraph_capture_sizes to choose them"
        )


def plan_captures(
    sizes: Sequence[int],
    *,
    requests: int,
    tokens_per_request: int = 1,
    tensor_parallel: int = 1,
    context_parallel: int = 1,
) -> CapturePlan:
    """Choose among the sizes that are asked for.

    Only whole decode steps are captured, so sizes beyond ``requests`` or below one request never
    are. If the device has too few streams for the rest, the largest and the smallest stay, and of
    those between them evenly many.

    Args:
        sizes: numbers of tokens.
        requests: requests of a step.
        tokens_per_request: tokens of a request in a decode step: 1, and 1 for every drafted one.
        tensor_parallel: ranks; more than one talk on a stream of their own.
        context_parallel: ranks that share a context; the same.
    """
    # vLLM rounds sizes up to whole requests, as long as they stay within the largest size.
    whole = {-(-size // tokens_per_request) * tokens_per_request for size in sizes if size > 0}
    most_tokens = min(max(sizes, default=0), requests * tokens_per_request)
    usable = sorted(size for size in whole if size <= most_tokens)
    streams = STREAMS_OF_A_GRAPH + (tensor_parallel > 1) + (context_parallel > 1)
    most = STREAM_BUDGET // streams
    if len(usable) <= most:
        return CapturePlan(tuple(usable), (), streams)
    places = {round(i * (len(usable) - 1) / (most - 1)) for i in range(most)}
    kept = tuple(size for place, size in enumerate(usable) if place in places)
    return CapturePlan(kept, tuple(sorted(set(usable) - set(kept))), streams)


def default_sizes(tokens: int, requests: int, tokens_per_request: int = 1) -> list[int]:
    """Sizes that vLLM 0.27.1 lists by itself.

    Args:
        tokens: tokens of a step, prompts included.
        requests: requests of a step.
        tokens_per_request: tokens of a request in a decode step.
    """
    most = min(tokens, 2 * requests * tokens_per_request, _MOST_TOKENS)
    sizes = {one for one in _SMALL if one <= most}
    sizes |= set(range(_FINE, min(most + 1, _COARSE_FROM), _FINE))
    sizes |= set(range(_COARSE_FROM, most + 1, _COARSE))
    if tokens <= most:
        sizes.add(tokens)
    return sorted(sizes)
