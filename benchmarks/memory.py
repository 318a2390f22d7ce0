"""Peak memory of an engine with the model above that of an engine without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.models import MODELS, Model

_CACHE_BYTES = 256 << 20
_NO_CACHE_BYTES = 64 << 20


@dataclass
class Peak:
    """Peak resident memory after serving one batch, MB.

    Attributes:
        dtype: of the model.
        empty_mb: engine with a model of almost no weights and a small cache.
        loaded_mb: engine with the 256M model.
        weights_mb: size of the checkpoint's tensors.
        caches_mb: cache memory that the engine was told to use.
    """

    dtype: str
    empty_mb: float
    loaded_mb: float
    weights_mb: float
    caches_mb: float

    @property
    def ratio(self) -> float:
        """Memory above the empty engine over weights plus caches."""
        return (self.loaded_mb - self.empty_mb) / (self.weights_mb + self.caches_mb)


def measure(model: str, checkpoint: Path, dtype: str, threads: int) -> Peak:
    """Measure both engines, each in a process of its own."""
    of = MODELS[model]
    weights = sum(f.stat().st_size for f in checkpoint.glob("*.safetensors")) / 2**20
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "empty"
        of.write(of.small, empty, dtype=getattr(torch, dtype))
        empty_mb = _peak_of(of, empty, dtype, _NO_CACHE_BYTES, threads)
    loaded_mb = _peak_of(of, checkpoint, dtype, _CACHE_BYTES, threads)
    return Peak(dtype, empty_mb, loaded_mb, weights, (_CACHE_BYTES - _NO_CACHE_BYTES) / 2**20)


_SERVE_ONE = """
import json, sys
from pathlib import Path
from benchmarks.peer_ours import engine
from benchmarks.workload import peak_rss_mb
from vllm import SamplingParams
if __name__ == "__main__":
    checkpoint, dtype, cache_bytes, vocab, settings = json.loads(sys.argv[1])
    llm = engine(Path(checkpoint), dtype, cache_bytes, **settings)
    prompt = [i % (vocab - 4) + 4 for i in range(64)]
    llm.generate([{"prompt_token_ids": prompt}], SamplingParams(max_tokens=8, detokenize=False))
    print("PEAK", peak_rss_mb())
"""


def _peak_of(of: Model, checkpoint: Path, dtype: str, cache_bytes: int, threads: int) -> float:
    from benchmarks.__main__ import environment

    vocab = of.small.vocab_size if cache_bytes == _NO_CACHE_BYTES else of.spec.vocab_size
    arguments = json.dumps([str(checkpoint), dtype, cache_bytes, vocab, of.settings])
    done = subprocess.run(
        [sys.executable, "-c", _SERVE_ONE, arguments],
        env={**os.environ, **environment(threads)},
        capture_output=True,
        text=True,
        check=True,
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("PEAK"))
    return float(line.split()[1])
