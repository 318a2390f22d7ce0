"""Per-step metadata of layers that keep a recurrent state for every request.

A step's requests are of two kinds. **Decodes** go through the recurrence token by token, from the
state behind a request's last accepted token: requests with one token and a context, and drafts,
which vLLM also puts behind a prompt of one token so that steps are alike.
**Prefills** go through the chunked form, from the request's one state or from none: all others, a
prompt of one token among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from vllm.v1.attention.backend import AttentionMetadata

from ascend_attention.ops.gated_delta_rule import chunk_table
from ascend_attention.step import to_device

__all__ = [
    "AscendGDNMetadata",
    "DecodeSegment",
    "PrefillSegment",
    "StepRequests",
    "build_metadata",
    "build_uniform_metadata",
]


@dataclass(frozen=True)
class StepRequests:
    """What the host knows of a step's requests, before anything is asked of the device.

    Attributes:
        lengths: tokens of every request in the step; 0 for padding.
        known: at most so many tokens of each are computed already.
        drafts: draft tokens of each; negative for one that has none to verify.
    """

    lengths: Sequence[int]
    known: Sequence[int]
    drafts: Sequence[int]

    def decodes(self) -> list[int]:
        """Requests that go through the recurrence."""
        return [
            r
            for r, (length, known, drafts) in enumerate(
                zip(self.lengths, self.known, self.drafts, strict=True)
            )
            if length > 0 and (drafts >= 0 or (known > 0 and length == 1))
        ]

    def fresh(self) -> list[int]:
        """Requests whose state must be zeros, should they go through the recurrence.

        Those with drafts do, and those of one token where a captured step takes them for decodes.
        """
        return [
            r
            for r, (length, known, drafts) in enumerate(
                zip(self.lengths, self.known, self.drafts, strict=True)
            )
            if length > 0 and known == 0 and (drafts >= 0 or length == 1)
        ]

    def prefills(self) -> list[int]:
        """Requests that go through the chunked form; those without tokens are left out."""
        decodes = set(self.decodes())
        return [r for r, length in enumerate(self.lengths) if length > 0 and r not in decodes]


@dataclass(frozen=True)
class DecodeSegment:
    """Requests of the recurrence, N of them.

    Attributes:
        tokens: rows of the step's tokens, a slice where they lie together; None for all rows.
        starts: ``[N + 1]`` int32, first token of every request among these tokens.
        slots: ``[N, 1 + drafts]`` int32, states of every request; token ``j`` writes the ``j``-th.
        accepted: ``[N]`` int32: the step starts from the state that the last step's token of
            this number (from one) wrote; None where no step has drafts.
        most_tokens: of one request.
    """

    tokens: slice | torch.Tensor | None
    starts: torch.Tensor
    slots: torch.Tensor
    accepted: torch.Tensor | None
    most_tokens: int


@dataclass(frozen=True)
class PrefillSegment:
    """Requests of the chunked form, N of them.

    Attributes:
        tokens: rows of the step's tokens, a slice where they lie together.
        starts: ``[N + 1]`` int32, first token of every request among these tokens.
        slots: ``[N]`` int32, the state of every request, read and written.
        continued: ``[N]`` bool, whether a request has a state already.
        most_tokens: of one request.
        chunks: see :func:`ascend_attention.ops.gated_delta_rule.chunk_table`; None on a CPU.
    """

    tokens: slice | torch.Tensor
    starts: torch.Tensor
    slots: torch.Tensor
    continued: torch.Tensor
    most_tokens: int
    chunks: torch.Tensor | None


@dataclass
class AscendGDNMetadata(AttentionMetadata):
    """What the layers of one group of states do in a step.

    Attributes:
        num_tokens: tokens of the step; rows behind them are padding.
        decodes: requests of the recurrence, or None.
        prefills: requests of the chunked form, or None.
    """

    num_tokens: int
    decodes: DecodeSegment | None = None
    prefills: PrefillSegment | None = None


def build_metadata(
    requests: StepRequests,
    slots: torch.Tensor,
    accepted: torch.Tensor | None,
) -> AscendGDNMetadata:
    """Metadata of one group of states for one step.

    Args:
        requests: the step's requests.
        slots: ``[R, 1 + drafts]`` int32, states of every request.
        accepted: ``[R]`` int32, tokens that the last step kept of every request, at least one;
            None where no step has drafts.
    """
    lengths = torch.tensor(requests.lengths, dtype=torch.int64)
    decodes, prefills = requests.decodes(), requests.prefills()
    made = AscendGDNMetadata(int(lengths.sum()))
    first = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    device = slots.device
    if decodes:
        rows, starts = _gather(first, lengths, decodes, device)
        index = _rows(decodes)
        made.decodes = DecodeSegment(
            rows,
            starts,
            slots[_on(index, device)],
            None if accepted is None else accepted[_on(index, device)],
            int(lengths[decodes].max()),
        )
    if prefills:
        rows, starts = _gather(first, lengths, prefills, device)
        index = _rows(prefills)
        (known,) = to_device(device, torch.tensor([requests.known[r] for r in prefills]))
        own = lengths[prefills]
        made.prefills = PrefillSegment(
            rows,
            starts,
            slots[_on(index, device)][:, 0].contiguous(),
            known > 0,
            int(own.max()),
            None if slots.is_cpu else chunk_table(starts, int(own.sum())),
        )
    return made


def build_uniform_metadata(
    requests: int, tokens: int, slots: torch.Tensor, accepted: torch.Tensor | None
) -> AscendGDNMetadata:
    """Metadata that a captured graph computes from the buffers that it reads.

    Args:
        requests: of the step, padding among them, whose slots are the null slot.
        tokens: of every request.
        slots: ``[R, 1 + drafts]`` int32.
        accepted: see :func:`build_metadata`.
    """
    starts = tokens * torch.arange(requests + 1, dtype=torch.int32, device=slots.device)
    segment = DecodeSegment(None, starts, slots, accepted, tokens)
    return AscendGDNMetadata(requests * tokens, segment)


def _gather(
    first: torch.Tensor, lengths: torch.Tensor, chosen: list[int], device: torch.device
) -> tuple[slice | torch.Tensor, torch.Tensor]:
    """Rows of the chosen requests' tokens, and where each of them starts among these rows."""
    own = lengths[chosen]
    starts = torch.nn.functional.pad(own.cumsum(0), (1, 0))
    (on_device,) = to_device(device, starts)
    on_device = on_device.int()
    begin, end = int(first[chosen[0]]), int(first[chosen[-1] + 1])
    if end - begin == int(starts[-1]):
        return slice(begin, end), on_device
    rows = torch.cat([torch.arange(int(first[r]), int(first[r + 1])) for r in chosen])
    (rows,) = to_device(device, rows)
    return rows, on_device


def _rows(chosen: list[int]) -> slice | list[int]:
    if chosen[-1] - chosen[0] + 1 == len(chosen):
        return slice(chosen[0], chosen[-1] + 1)
    return chosen


def _on(index: slice | list[int], device: torch.device) -> slice | torch.Tensor:
    if isinstance(index, slice):
        return index
    (made,) = to_device(device, torch.tensor(index))
    return made
