"""Drafts for the trained tiny targets in vLLM's engine: tokens/s and acceptance by position."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tools.tiny_model.data import documents, encode
from tools.tiny_model.dense import tokenizer_of

CHECKPOINTS = Path(__file__).parents[1] / "tools/tiny_model/checkpoints"
DEMO = Path(__file__).parents[1] / (
    "packages/ascend-vllm-plugin/src/ascend_vllm_plugin/data/tiny-deepseek-v4"
)
TARGETS = {"llama": CHECKPOINTS / "llama", "qwen3": CHECKPOINTS / "qwen3", "v4": DEMO}
BATCHES = {"llama": (1, 4, 8, 16, 32), "qwen3": (1, 4, 8, 16, 32), "v4": (1, 4, 16)}
"""Requests at once; fewer numbers of them for a target whose steps take longer."""
PROMPT, DECODE = 64, 128
NONE = "none"


@dataclass(frozen=True)
class Way:
    """A method and how many tokens it drafts; `NONE` for no speculation.

    Attributes:
        method: vLLM's name.
        width: drafted tokens.
        settings: more of ``speculative_config``.
        draft: what follows the target's name in that of the draft's folder; empty for none.
        of: targets that it is for; empty for all that have such a draft.
    """

    method: str
    width: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    draft: str = ""
    of: tuple[str, ...] = ()

    def __str__(self) -> str:
        name = self.draft or self.method
        return f"{name} k={self.width}" if self.width else name

    def fits(self, target: str) -> bool:
        """Whether there is such a draft for a target."""
        own = not self.draft or (CHECKPOINTS / f"{target}-{self.draft}").exists()
        return own and target in (self.of or TARGETS)

    def config(self, target: str) -> dict[str, Any] | None:
        """``speculative_config`` for a target; None for no speculation."""
        if self.method == NONE:
            return None
        given = {"method": self.method, "num_speculative_tokens": self.width, **self.settings}
        if self.draft:
            given["model"] = str(CHECKPOINTS / f"{target}-{self.draft}")
        return given


LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
DENSE = ("llama", "qwen3")
WAYS = (
    Way(NONE),
    Way("ngram", 3, LOOKUP),
    Way("suffix", 7),
    Way("medusa", 4, draft="medusa"),
    Way("mtp", 1, of=("v4",)),
    Way("mtp", 3, of=("v4",)),
    Way("eagle3", 1, draft="eagle3", of=DENSE),
    Way("eagle3", 3, draft="eagle3"),
    Way("eagle3", 5, draft="eagle3", of=DENSE),
    Way("dflash", 7, draft="dflash2"),
    Way("dspark", 5, draft="dspark", of=("v4",)),
    Way("dspark", 7, draft="dspark", of=DENSE),
)


@dataclass
class Cell:
    """One target, way and batch.

    Attributes:
        target: name of its checkpoint.
        way: of drafting, as text.
        batch: requests at once.
        seconds: for ``DECODE`` tokens behind the first of every request, one per repeat.
        drafts: steps of requests that had drafts.
        right: of these, accepted tokens by their place in the draft.
        tokens: of the first request.
    """

    target: str
    way: str
    batch: int
    seconds: list[float] = field(default_factory=list)
    drafts: float = 0
    right: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Generated tokens/s over the batch, median of the repeats."""
        return self.batch * DECODE / median(self.seconds)

    @property
    def acceptance(self) -> list[float]:
        """Share of drafts whose first, second... token was accepted."""
        return [one / self.drafts for one in self.right] if self.drafts else []


def prompts(target: str, count: int, repeat: int) -> list[list[int]]:
    """Beginnings of held-out stories, other ones in every repeat."""
    source = documents(seed=50_000 + repeat, held_out=True)
    tokenizer = tokenizer_of(TARGETS[target])
    found: list[list[int]] = []
    while len(found) < count:
        ids = encode(tokenizer, next(source))
        if len(ids) >= PROMPT:
            found.append(ids[:PROMPT])
    return found


def measure(repeats: int, say: Callable[[str], None]) -> list[Cell]:
    """All cells, one engine after the other in this process.

    Raises:
        ValueError: a way of drafting changed a greedy text.
    """
    cells: list[Cell] = []
    for target in TARGETS:
        for way in WAYS:
            if not way.fits(target):
                continue
            say(f"{target} {way} ...")
            cells += _of_engine(target, way, way.config(target), repeats)
    texts = {(c.target, c.batch): c.tokens for c in cells if c.way == NONE}
    for cell in cells:
        if cell.tokens != texts[cell.target, cell.batch]:
            raise ValueError(f"{cell.target} {cell.way}: another text than without drafts")
    return cells


def _of_engine(target: str, way: Way, config: dict[str, Any] | None, repeats: int) -> list[Cell]:
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    llm = LLM(
        model=str(TARGETS[target]),
        dtype="float32",
        enforce_eager=True,
        skip_tokenizer_init=True,
        max_model_len=512,
        max_num_seqs=max(BATCHES[target]),
        max_num_batched_tokens=max(BATCHES[target]) * (PROMPT + 8),
        kv_cache_memory_bytes=1 << 27,
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config=config,
    )
    _serve(llm, prompts(target, 2, -1), 24, "warm-up")
    cells = []
    for batch in BATCHES[target]:
        cell = Cell(target, str(way), batch)
        before = _counts(llm)
        for repeat in range(repeats):
            seconds, tokens = _serve(
                llm, prompts(target, batch, repeat), DECODE, f"{batch}-{repeat}"
            )
            cell.seconds.append(seconds)
            cell.tokens = cell.tokens or tokens
        after = _counts(llm)
        cell.drafts = after[0] - before[0]
        cell.right = [new - old for new, old in zip(after[1], before[1], strict=True)]
        cells.append(cell)
    llm.llm_engine.engine_core.shutdown()
    del llm
    gc.collect()
    cleanup_dist_env_and_memory()
    return cells


def _serve(llm: Any, given: list[list[int]], decode: int, name: str) -> tuple[float, list[int]]:
    """Seconds from everybody's first token on to the last, and the first request's tokens."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=decode + 1, temperature=0, detokenize=False, ignore_eos=True)
    core = llm.llm_engine
    for i, ids in enumerate(given):
        core.add_request(f"{name}-{i}", {"prompt_token_ids": ids}, params)
    produced: dict[str, list[int]] = {}
    begun = 0.0
    while core.has_unfinished_requests():
        for output in core.step():
            produced[output.request_id] = list(output.outputs[0].token_ids)
        if not begun and len(produced) == len(given):
            begun = time.perf_counter()
    first = next(tokens for key, tokens in produced.items() if key.startswith(f"{name}-0"))
    return time.perf_counter() - begun, first


def _counts(llm: Any) -> tuple[float, list[float]]:
    """Drafts so far, and accepted tokens by their place."""
    found = {metric.name: metric for metric in llm.get_metrics()}
    drafts = found.get("vllm:spec_decode_num_drafts")
    right = found.get("vllm:spec_decode_num_accepted_tokens_per_pos")
    if drafts is None or right is None:
        return 0.0, []
    return drafts.value, list(right.values)
