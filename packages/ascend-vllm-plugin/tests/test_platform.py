"""AscendReferencePlatform on made-up engine configs."""

from __future__ import annotations

# vLLM imports the platform by itself; the platform cannot be the first to import vLLM.
from vllm.platforms.cpu import CpuPlatform  # isort: skip

import logging
import os
from types import SimpleNamespace
from typing import Any

import pytest
from ascend_attention.caches import default_block_tokens
from ascend_ops_core import InvalidInputError
from ascend_vllm_plugin import platform
from ascend_vllm_plugin.platform import AscendReferencePlatform
from ascend_vllm_plugin.thread_binding import Binding


def config(*, compressed: bool = True, **cache: Any) -> Any:
    text = SimpleNamespace(**({"compress_ratios": [0, 4]} if compressed else {}))
    settings = {"block_size": 16, "user_specified_block_size": False} | cache
    return SimpleNamespace(
        model_config=SimpleNamespace(
            hf_text_config=text, hf_config=SimpleNamespace(model_type="another"), use_mla=False
        ),
        cache_config=SimpleNamespace(enable_prefix_caching=True, **settings),
        scheduler_config=SimpleNamespace(enable_chunked_prefill=True, max_num_batched_tokens=512),
        parallel_config=SimpleNamespace(world_size=2, enable_eplb=False, worker_cls="auto"),
        speculative_config=None,
    )


@pytest.fixture(autouse=True)
def _stock(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's own check, as far as it matters here: it switches off what MLA cannot do there."""

    def check(cls: type, vllm_config: Any) -> None:
        vllm_config.scheduler_config.enable_chunked_prefill = False
        vllm_config.scheduler_config.max_num_batched_tokens = 4096

    monkeypatch.setattr(CpuPlatform, "check_and_update_config", classmethod(check))
    monkeypatch.setattr(platform, "choose_binding", lambda workers: Binding(f"0|{workers}", "why"))
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "auto")


def test_chunked_prefill_survives_and_caches_are_paged(caplog: pytest.LogCaptureFixture) -> None:
    given = config()
    with caplog.at_level(logging.INFO):
        AscendReferencePlatform.check_and_update_config(given)
    assert given.scheduler_config.enable_chunked_prefill
    assert given.scheduler_config.max_num_batched_tokens == 512
    assert given.cache_config.block_size == default_block_tokens("cpu") == 256
    assert "units of 256 tokens" in caplog.text


def test_other_models_get_the_stock_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for their cores: vLLM would start no two workers on one NUMA node."""
    given = config(compressed=False)
    AscendReferencePlatform.check_and_update_config(given)
    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "0|2"
    assert not given.scheduler_config.enable_chunked_prefill
    assert given.cache_config.block_size == 16
    ours = "ascend_vllm_plugin.reference_worker.ReferenceWorker"
    assert given.parallel_config.worker_cls == ours
    given.parallel_config.worker_cls = "another.Worker"
    given.model_config = None
    AscendReferencePlatform.check_and_update_config(given)
    assert given.parallel_config.worker_cls == "another.Worker"


def upstream_latents(*, hybrid: bool, cache_dtype: str = "auto") -> Any:
    """A model of vLLM's own with latent attention."""
    from vllm.config import CompilationMode

    given = config(compressed=False, cache_dtype=cache_dtype)
    given.model_config.use_mla, given.model_config.is_hybrid = True, hybrid
    given.parallel_config.decode_context_parallel_size = 1
    given.parallel_config.cp_kv_cache_interleave_size = 1
    given.parallel_config.dcp_kv_cache_interleave_size = 1
    given.compilation_config = SimpleNamespace(mode=CompilationMode.VLLM_COMPILE)
    return given


@pytest.mark.parametrize(("hybrid", "block"), [(False, 128), (True, 16)])
def test_latents_of_vllms_own_models(hybrid: bool, block: int) -> None:
    """vLLM has no backend for them; beside states it sets the size of a block later."""
    from vllm.config import CompilationMode

    with pytest.raises(NotImplementedError, match="MLA"):
        CpuPlatform.get_attn_backend_cls(None, SimpleNamespace(use_mla=True))  # type: ignore[arg-type]
    given = upstream_latents(hybrid=hybrid)
    AscendReferencePlatform.check_and_update_config(given)
    assert given.scheduler_config.enable_chunked_prefill
    assert given.scheduler_config.max_num_batched_tokens == 512
    assert given.cache_config.block_size == block
    assert given.compilation_config.mode == CompilationMode.NONE
    with pytest.raises(InvalidInputError, match="kv_cache_dtype='fp8'"):
        AscendReferencePlatform.check_and_update_config(
            upstream_latents(hybrid=hybrid, cache_dtype="fp8")
        )


def test_a_deepseek_that_cannot_be_served_stops_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(vllm_config: Any) -> None:
        raise InvalidInputError("value", "limit", "remedy")

    monkeypatch.setattr(platform, "check_deepseek", refuse)
    with pytest.raises(InvalidInputError, match="remedy"):
        AscendReferencePlatform.check_and_update_config(config())
    AscendReferencePlatform.check_and_update_config(config(compressed=False))


def test_another_block_size_is_refused() -> None:
    given = config(block_size=128, user_specified_block_size=True)
    with pytest.raises(InvalidInputError, match=r"block_size=128.*a CPU.*256 tokens.*unset"):
        AscendReferencePlatform.check_and_update_config(given)
    given = config(block_size=256, user_specified_block_size=True)
    AscendReferencePlatform.check_and_update_config(given)


@pytest.mark.parametrize(
    ("before", "after"), [("auto", "0|2"), ("0-1", "0-1"), ("nobind", "nobind")]
)
def test_threads_are_bound_unless_the_user_did(
    monkeypatch: pytest.MonkeyPatch, before: str, after: str
) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", before)
    AscendReferencePlatform.check_and_update_config(config())
    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == after


def test_a_second_engine_of_another_size_is_bound_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "auto")
    for parts in ("0|1", "0,1"):
        monkeypatch.setattr(
            platform, "choose_binding", lambda workers, parts=parts: Binding(parts, "why")
        )
        AscendReferencePlatform.check_and_update_config(config())
        assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == parts
