"""The workload that every peer runs, and what it measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from benchmarks.models import MODELS


@dataclass(frozen=True)
class Workload:
    """One cell of the table.

    Attributes:
        dtype: ``float32`` or ``bfloat16``.
        batch: sequences at once.
        prompt: tokens of every prompt.
        decode: tokens generated after the first.
        repeats: measurements; the median is reported.
        model: a key of :data:`benchmarks.models.MODELS`.
    """

    dtype: str
    batch: int
    prompt: int = 512
    decode: int = 64
    repeats: int = 3
    model: str = "v4"

    def prompts(self, repeat: int) -> list[list[int]]:
        """Random prompts, other ones in every repeat so that no cache can help."""
        generator = torch.Generator().manual_seed(1000 + repeat)
        shape = (self.batch, self.prompt)
        words = MODELS[self.model].spec.vocab_size
        ids: list[list[int]] = torch.randint(4, words, shape, generator=generator).tolist()
        return ids


@dataclass
class Measurement:
    """What a peer measured.

    Attributes:
        peer: who ran.
        workload: what ran.
        prefill_s: seconds until every sequence had its first token, one per repeat.
        decode_s: seconds for the remaining tokens, one per repeat.
        peak_rss_mb: peak resident memory of the process, MB.
        tokens: the first sequence's generated tokens in the first repeat.
        capability: what torch said it uses of the CPU, such as ``AVX2``.
    """

    peer: str
    workload: Workload
    prefill_s: list[float] = field(default_factory=list)
    decode_s: list[float] = field(default_factory=list)
    peak_rss_mb: float = 0.0
    tokens: list[int] = field(default_factory=list)
    capability: str = ""

    def to_json(self) -> dict[str, object]:
        """Plain values for a JSON file."""
        return asdict(self)


def peak_rss_mb() -> float:
    """Peak resident memory of this program so far, MB.

    Not ``ru_maxrss``: a process inherits that from the one that started it.
    """
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) / 1024
