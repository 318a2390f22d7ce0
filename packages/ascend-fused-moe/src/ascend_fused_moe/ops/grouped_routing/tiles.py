"""How much of the unified buffer the kernel takes per token."""

from __future__ import annotations

from ascend_ops_core.tiling import next_power_of_two

from ascend_fused_moe.ops.routing.tiles import topk_bytes

# Of an expert, besides what it takes without groups: its rank within a group, and within the
# chosen groups.
_LIVE_BYTES = 12
# Of a group: its score, what is compared and what is selected.
_GROUP_BYTES = 16

LEAST_GROUPS = 8
"""Groups as the kernel sees them; a row of the buffer has at least 32 bytes."""


def groups_of(groups: int) -> int:
    """Padded number of groups."""
    return max(next_power_of_two(groups), LEAST_GROUPS)


def grouped_bytes(experts: int, top_k: int, groups: int) -> int:
    """Bytes of a token, besides the logits that are loaded."""
    more = next_power_of_two(experts) * _LIVE_BYTES + groups_of(groups) * _GROUP_BYTES
    return topk_bytes(experts, top_k) + more
