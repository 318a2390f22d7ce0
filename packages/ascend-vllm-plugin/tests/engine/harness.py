"""An in-process vLLM engine and the comparison of what it returns with the transformers oracle."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

import torch
from ascend_models_deepseek.testing import (
    FLOAT32_LOGITS_ATOL,
    SPECS,
    AmbiguousPromptError,
    Oracle,
    TinyV4Spec,
    write_checkpoint,
)
from ascend_models_deepseek.testing.oracle_v3 import V3Oracle
from ascend_models_deepseek.testing.oracle_v32 import V32Oracle
from ascend_models_deepseek.testing.tiny_v3 import V3_SPECS, TinyV3Spec, write_v3_checkpoint
from ascend_models_deepseek.testing.tiny_v32 import (
    V32_SPECS,
    TinyGlmSpec,
    TinyV32Spec,
    write_v32_checkpoint,
)
from ascend_models_kimi.testing import (
    K3_SPECS,
    KIMI_LINEAR_SPECS,
    K3Oracle,
    KimiLinearOracle,
    TinyK3Spec,
    TinyKimiLinearSpec,
    write_k3_checkpoint,
    write_kimi_linear_checkpoint,
)
from ascend_models_minimax.testing import M3_SPECS, M3Oracle, TinyM3Spec, write_m3_checkpoint
from ascend_vllm_plugin.testing import (
    BAILING_SPECS,
    QWEN3_NEXT_SPECS,
    BailingOracle,
    Qwen3NextOracle,
    TinyBailingSpec,
    TinyQwen3NextSpec,
    write_bailing_checkpoint,
    write_qwen3_next_checkpoint,
)

from .dense_models import DENSE_SPECS, TinyDenseSpec, write_dense_checkpoint
from .trained import TRAINED_SPECS, TrainedSpec, copy_checkpoint

DEFAULTS: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "skip_tokenizer_init": True,
    "max_model_len": 1024,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 2048,
    "kv_cache_memory_bytes": 1 << 26,
    "enable_prefix_caching": False,
    "logprobs_mode": "raw_logits",
    "max_logprobs": -1,
    "disable_log_stats": False,
}

# Bound at import: while engines run, gc's own does nothing, so that vLLM freezes none of them.
_freeze = gc.freeze
_living: WeakSet[Any] = WeakSet()

FAMILIES: dict[type, tuple[Any, Any]] = {
    TinyV4Spec: (write_checkpoint, Oracle),
    TinyV3Spec: (write_v3_checkpoint, V3Oracle),
    TinyV32Spec: (write_v32_checkpoint, V32Oracle),
    TinyGlmSpec: (write_v32_checkpoint, V32Oracle),
    TinyM3Spec: (write_m3_checkpoint, M3Oracle),
    TinyKimiLinearSpec: (write_kimi_linear_checkpoint, KimiLinearOracle),
    TinyK3Spec: (write_k3_checkpoint, K3Oracle),
    TinyDenseSpec: (write_dense_checkpoint, V3Oracle),
    TinyQwen3NextSpec: (write_qwen3_next_checkpoint, Qwen3NextOracle),
    TinyBailingSpec: (write_bailing_checkpoint, BailingOracle),
    TrainedSpec: (copy_checkpoint, V3Oracle),
}
"""What writes a checkpoint and what runs it in transformers, by the kind of its spec."""

ALL_SPECS: dict[str, Any] = {
    **SPECS,
    **V3_SPECS,
    **V32_SPECS,
    **M3_SPECS,
    **KIMI_LINEAR_SPECS,
    **K3_SPECS,
    **DENSE_SPECS,
    **QWEN3_NEXT_SPECS,
    **BAILING_SPECS,
    **TRAINED_SPECS,
}


@dataclass(frozen=True)
class Request:
    """One request: its prompt, how many tokens to generate, and the engine step it joins at.

    `sampling` holds further arguments of `vllm.SamplingParams`; without any it is greedy. `media`
    holds images and videos by modality, for the placeholders in the prompt.
    """

    prompt: list[int]
    count: int
    join_at: int = 0
    prompt_logits: bool = False
    sampling: dict[str, Any] = field(default_factory=dict)
    media: dict[str, Any] = field(default_factory=dict)


@dataclass
class Result:
    """What an engine returned for one request.

    Attributes:
        tokens: Generated ids.
        logits: `[len(tokens), vocab]` raw logits that each was picked from.
        prompt_logits: `[len(prompt) - 1, vocab]` raw logits of the prompt, when asked for.
        cached: Prompt tokens taken from the prefix cache.
        finished_at: Engine step of the last token.
    """

    tokens: list[int]
    logits: torch.Tensor
    prompt_logits: torch.Tensor | None
    cached: int
    finished_at: int


@dataclass
class Checkpoints:
    """Checkpoint folders and their oracles, made on first use and kept for the session."""

    root: Path
    oracles: dict[str, Any] = field(default_factory=dict)

    def folder(self, name: str, dtype: torch.dtype = torch.float32) -> Path:
        """Return the folder of a named spec in a dtype."""
        path = self.root / f"{name}-{str(dtype).removeprefix('torch.')}"
        if not (path / "model.safetensors").exists():
            write, _ = FAMILIES[type(self.spec(name))]
            write(self.spec(name), path, dtype)
        return path

    def oracle(self, name: str) -> Any:
        """Return the float32 oracle of a named spec."""
        if name not in self.oracles:
            _, oracle = FAMILIES[type(self.spec(name))]
            self.oracles[name] = oracle(self.folder(name))
        return self.oracles[name]

    @staticmethod
    def spec(name: str) -> Any:
        """Return a named spec."""
        return ALL_SPECS[name]


class Engine:
    """A vLLM engine in this process, stepped by the tests.

    Args:
        folder: Checkpoint folder.
        settings: Arguments of `vllm.LLM`, over `DEFAULTS`.

    Attributes:
        broken: A run ended in an exception; its requests are still inside.
    """

    def __init__(self, folder: Path, **settings: Any) -> None:
        from vllm import LLM

        given = {**DEFAULTS, **settings}
        measured = given["kv_cache_memory_bytes"] is None
        with nullcontext() if measured else patch.object(gc, "collect", keep_garbage):
            self.llm = LLM(model=str(folder), **given)
        if not given["enforce_eager"]:
            # Replays must not live on memory that is garbage.
            gc.collect()
        self.engine = self.llm.llm_engine
        _living.update((self.llm, self.engine.engine_core))
        self.serial = 0
        self.broken = False

    @property
    def scheduler(self) -> Any:
        """The scheduler of the in-process engine core."""
        return self.engine.engine_core.engine_core.scheduler

    @property
    def runner(self) -> Any:
        """The model runner of the in-process worker."""
        return self.engine.engine_core.engine_core.model_executor.driver_worker.model_runner

    def metric(self, name: str) -> float:
        """Sum a counter over its labels; metrics live as long as the process, so compare deltas.

        Raises:
            LookupError: When vLLM reports no metric of that name.
        """
        found = [m.value for m in self.llm.get_metrics() if m.name == name]
        if not found:
            raise LookupError(f"vLLM reports no metric {name!r}")
        return sum(found)

    @contextmanager
    def scheduling_at_most(self, tokens: int) -> Iterator[None]:
        """Cut every step to `tokens` tokens, as `max_num_batched_tokens=tokens` would.

        Set on the running scheduler, since an engine start for each chunk size takes minutes.
        """
        saved = self.scheduler.max_num_scheduled_tokens
        self.scheduler.max_num_scheduled_tokens = tokens
        try:
            yield
        finally:
            self.scheduler.max_num_scheduled_tokens = saved

    @property
    def caches(self) -> dict[str, torch.Tensor]:
        """Every layer's cache by name, `[blocks, rows, width]`; all share one pool of blocks.

        Recurrent states are left out, of which a layer has several.
        """
        layers = self.engine.vllm_config.compilation_config.static_forward_context
        found = {name: layer.kv_cache for name, layer in layers.items()}
        return {
            name: cache
            for name, cache in found.items()
            if isinstance(cache, torch.Tensor) and cache.numel()
        }

    @contextmanager
    def recording_blocks(self) -> Iterator[set[int]]:
        """Collect the ids of all blocks that the scheduler hands to requests, of every group."""
        scheduler, used = self.scheduler, set[int]()
        schedule = scheduler.schedule

        def schedule_and_record(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            for name in scheduler.requests:
                for ids in scheduler.kv_cache_manager.get_block_ids(name):
                    used.update(ids)
            return output

        scheduler.schedule = schedule_and_record
        try:
            yield used
        finally:
            del scheduler.schedule

    def run(self, requests: Sequence[Request]) -> list[Result]:
        """Generate for all requests, each joining at its own step."""
        self.broken = True
        results = list(self._run(requests).values())
        self.broken = False
        return results

    def generate(self, prompt: list[int], count: int) -> Result:
        """Generate greedily for one prompt."""
        return self.run([Request(prompt, count)])[0]

    def _run(self, requests: Sequence[Request]) -> dict[str, Result]:
        self.serial += 1
        waiting = {f"{self.serial}-{i}": request for i, request in enumerate(requests)}
        results: dict[str, Result | None] = dict.fromkeys(waiting)
        step = 0
        while waiting or self.engine.has_unfinished_requests():
            for name in [n for n, request in waiting.items() if request.join_at <= step]:
                self._add(name, waiting.pop(name))
            step += 1
            if not self.engine.has_unfinished_requests():
                continue
            for output in self.engine.step():
                if output.finished:
                    results[output.request_id] = self._result(output, step)
        return {name: result for name, result in results.items() if result is not None}

    def _add(self, name: str, request: Request) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            max_tokens=request.count,
            logprobs=-1,
            prompt_logprobs=-1 if request.prompt_logits else None,
            flat_logprobs=True,
            detokenize=False,
            ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
            **({"temperature": 0} | request.sampling),
        )
        prompt: Any = {"prompt_token_ids": request.prompt}
        if request.media:
            prompt["multi_modal_data"] = request.media
            (prompt,) = self.engine.renderer.render_cmpl([prompt])
        self.engine.add_request(name, prompt, params)

    def _result(self, output: Any, step: int) -> Result:
        vocab = self.engine.model_config.get_vocab_size()
        completion = output.outputs[0]
        prompt_rows = output.prompt_logprobs
        return Result(
            tokens=list(completion.token_ids),
            logits=dense(completion.logprobs, vocab),
            prompt_logits=None if prompt_rows is None else dense(prompt_rows, vocab)[1:],
            cached=output.num_cached_tokens,
            finished_at=step,
        )

    def close(self) -> None:
        """Shut the engine down and free what it holds in this process."""
        from vllm.distributed import cleanup_dist_env_and_memory

        self.engine.engine_core.shutdown()
        del self.engine, self.llm
        # It looks for garbage in the end, as is wanted here.
        cleanup_dist_env_and_memory()
        spare_the_next_search()


def spare_the_next_search() -> None:
    """Let gc look at none of what is left when engines are gone: modules and oracles.

    An engine that something holds would never be collected.
    """
    if not _living:
        _freeze()


def keep_garbage(generation: int = 2) -> int:
    """Stands in the place of `gc.collect`, and finds nothing.

    vLLM asks for it a dozen times while an engine starts, which is half of what a small one takes,
    to know what memory is in use. Nobody asks where the size of the caches is given.
    """
    return 0


def dense(rows: Any, vocab: int) -> torch.Tensor:
    """Turn vLLM's flat list of (token, logit) pairs into `[positions, vocab]`; NaN where absent."""
    table = torch.full((len(rows), vocab), float("nan"))
    ids, values = torch.tensor(rows.token_ids), torch.tensor(rows.logprobs)
    spans = zip(rows.start_indices, rows.end_indices, strict=True)
    for row, (start, end) in enumerate(spans):
        table[row, ids[start:end]] = values[start:end]
    return table


def assert_matches_oracle(oracle: Oracle, prompt: list[int], result: Result, count: int) -> None:
    """Compare logits and tokens with transformers at the float32 bar."""
    assert len(result.tokens) == count
    expected = oracle.picked_logits(prompt, result.tokens)
    difference = (result.logits - expected).abs().amax(dim=-1)
    where = f"prompt of {len(prompt)} tokens, {result.cached} from the prefix cache"
    bad = (~(difference <= FLOAT32_LOGITS_ATOL)).nonzero().flatten().tolist()
    assert not bad, (
        f"{where}: {len(bad)} of {count} steps differ, first at generated token {bad[0]} "
        f"by {float(difference[bad[0]]):.3g}, worst {float(difference.max()):.3g}"
    )
    assert expected.argmax(-1).tolist() == result.tokens, where


def assert_all_match(oracle: Oracle, requests: Sequence[Request], results: list[Result]) -> None:
    """Compare every result of a batch with transformers run on that request alone."""
    assert len(results) == len(requests)
    for request, result in zip(requests, results, strict=True):
        assert_matches_oracle(oracle, request.prompt, result, request.count)


def assert_clear_match(
    engine: Engine, oracle: Oracle, requests_of: Callable[[int], list[Request]]
) -> None:
    """Run requests whose logits rounding does not decide, and compare them as above.

    Which prompts those are depends on the CPU's order of additions.

    Args:
        engine: the engine.
        oracle: transformers' model.
        requests_of: makes requests of other prompts for every number.
    """
    for attempt in range(3):
        requests = requests_of(1000 * attempt)
        try:
            assert_all_match(oracle, requests, engine.run(requests))
        except AmbiguousPromptError:
            continue
        return
    raise AssertionError("rounding decides a selection in three sets of prompts")


class EnginePool:
    """Keeps the one engine that is alive, and replaces it when another kind is asked for.

    Args:
        checkpoints: what the engines serve.
        additional_config: of every engine; what an engine is given itself goes before it.
    """

    def __init__(
        self, checkpoints: Checkpoints, additional_config: dict[str, Any] | None = None
    ) -> None:
        self.checkpoints = checkpoints
        self.additional_config = additional_config or {}
        self.key: str | None = None
        self.engine: Engine | None = None

    def get(self, name: str, dtype: torch.dtype = torch.float32, **settings: Any) -> Engine:
        """Return a running engine for a named spec with these settings."""
        if self.additional_config:
            given = settings.get("additional_config", {})
            settings["additional_config"] = self.additional_config | given
        key = repr((name, dtype, sorted(settings.items())))
        if key != self.key or self.engine is None or self.engine.broken:
            self.close()
            settings["dtype"] = str(dtype).removeprefix("torch.")
            self.engine = Engine(self.checkpoints.folder(name, dtype), **settings)
            self.key = key
        return self.engine

    def close(self) -> None:
        """Shut the current engine down, if there is one."""
        if self.engine is not None:
            self.engine.close()
        self.engine = self.key = None
