"""The DeepSeek-V4 shape and the workload that every peer runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from ascend_models_deepseek.testing.tiny_v4 import TinyV4Spec

SHAPE = TinyV4Spec(
    compress_ratios=(0, 128, 4, 128, 4, 128, 4, 0),
    num_hash_layers=2,
    vocab_size=8192,
    hidden_size=1024,
    moe_intermediate_size=512,
    num_attention_heads=16,
    head_dim=128,
    qk_rope_head_dim=64,
    q_lora_rank=256,
    o_groups=4,
    o_lora_rank=256,
    n_routed_experts=16,
    num_experts_per_tok=4,
    swiglu_limit=10.0,
    sliding_window=128,
    index_n_heads=16,
    index_head_dim=64,
    index_topk=64,
    yarn=None,
    max_position_embeddings=4096,
)
"""256 million parameters, 97 million active per token."""

ACTIVE_PARAMETERS = 97.0e6
TOTAL_PARAMETERS = 256.45e6


@dataclass(frozen=True)
class Workload:
    """One cell of the table.

    Attributes:
        dtype: ``float32`` or ``bfloat16``.
        batch: sequences at once.
        prompt: tokens of every prompt.
        decode: tokens generated after the first.
        repeats: measurements; the median is reported.
    """

    dtype: str
    batch: int
    prompt: int = 512
    decode: int = 64
    repeats: int = 3

    def prompts(self, repeat: int) -> list[list[int]]:
        """Random prompts, other ones in every repeat so that no cache can help."""
        generator = torch.Generator().manual_seed(1000 + repeat)
        shape = (self.batch, self.prompt)
        ids: list[list[int]] = torch.randint(
            4, SHAPE.vocab_size, shape, generator=generator
        ).tolist()
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


def checkpoint_dir(root: Path, dtype: str) -> Path:
    """Where the checkpoint of one dtype lies."""
    return root / f"v4-256m-{dtype}"
