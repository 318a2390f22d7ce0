"""Estimates, each with how it was made, and the buffers of HCCL.

None of them was measured on an NPU. A figure that nothing public states is left out and named as
unknown instead of being guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

from ascend_vllm_plugin.planning.hccl import SOURCE
from ascend_vllm_plugin.planning.models import ModelSpec
from ascend_vllm_plugin.planning.weights import Layout

MIB = 1024**2
MC2_SOURCE = (
    "buffer of the fused dispatch and combine as vllm-ascend sizes it (pull request 3073): "
    "2 x (experts x tokens x cards x align512(align32(2H) + 64) + (k + shared) x tokens x "
    "align512(2H)); not run on hardware"
)
ALL_REDUCE_SOURCE = (
    "tokens of a step x hidden size x bytes, the size that Huawei's CANN 8.5 documentation "
    "recommends; a smaller buffer is slower, not wrong; not run on hardware"
)


@dataclass(frozen=True)
class Estimate:
    """Bytes that are estimated, or not known.

    Attributes:
        bytes: the estimate; 0 where there is none.
        how: how it was made, and what it leaves out.
    """

    bytes: int
    how: str

    @property
    def mib(self) -> int:
        """The estimate in whole MiB, rounded up."""
        return -(-self.bytes // MIB)


@dataclass(frozen=True)
class Step:
    """The largest step of the engine.

    Attributes:
        tokens: tokens of a step, prompts included.
        sequences: requests of a step.
        speculative_tokens: tokens that a request drafts in a step.
    """

    tokens: int
    sequences: int
    speculative_tokens: int = 0

    @property
    def decode_tokens(self) -> int:
        """Tokens of the largest step without prompts."""
        return min(self.tokens, self.sequences * (1 + self.speculative_tokens))


def needed_hccl(spec: ModelSpec, layout: Layout, itemsize: int, step: Step) -> Estimate:
    """The buffer that a layout asks for, to be set as ``HCCL_BUFFSIZE``.

    Zero for a single card. With shared-out experts the fused exchange sizes its buffer by it and
    fails if it is too small.
    """
    if layout.cards == 1:
        return Estimate(0, "one card has nobody to talk to")
    reduce = step.tokens * spec.hidden_size * itemsize
    if layout.expert == 1:
        return Estimate(reduce, ALL_REDUCE_SOURCE)
    row = _align(2 * spec.hidden_size, 512)
    packet = _align(_align(2 * spec.hidden_size, 32) + 64, 512)
    experts = -(-spec.n_routed_experts // layout.expert)
    tokens = -(-step.decode_tokens // layout.tensor)
    exchange = 2 * (
        experts * tokens * layout.expert * packet
        + (spec.num_experts_per_tok + spec.n_shared_experts) * tokens * row
    )
    return Estimate(exchange, MC2_SOURCE)


def hccl(layout: Layout, buffer_mib: int, *, projection_ranks: int = 1) -> Estimate:
    """Buffers of the communicators that a layout opens.

    Args:
        layout: how the model is spread.
        buffer_mib: ``HCCL_BUFFSIZE``.
        projection_ranks: ranks of a communicator of the output projection's own; 1 for none.
    """
    groups = [
        name
        for name, size in (
            ("world", layout.cards),
            ("tensor", layout.tensor),
            ("data", layout.data),
            ("expert", layout.expert),
            ("context", layout.context),
            ("output projection", projection_ranks),
        )
        if size > 1
    ]
    if not groups:
        return Estimate(0, "one card has nobody to talk to")
    return Estimate(
        2 * buffer_mib * MIB * len(groups),
        f"{len(groups)} communicators ({', '.join(groups)}) of 2 x {buffer_mib} MiB; {SOURCE}; not "
        "run on hardware",
    )


def _align(value: int, unit: int) -> int:
    return -(-value // unit) * unit
