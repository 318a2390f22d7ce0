"""AscendNPUPlatform on made-up engine configs; no NPU, real or simulated, is in this process."""

from __future__ import annotations

# vLLM imports the platform by itself; the platform cannot be the first to import vLLM.
from vllm.platforms.interface import PlatformEnum  # isort: skip

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_ops_core import InvalidInputError
from ascend_ops_core.devices import use_family
from ascend_vllm_plugin.npu import platform
from ascend_vllm_plugin.npu.platform import AscendNPUPlatform
from vllm.config import CompilationMode
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.selector import AttentionSelectorConfig


def config(
    *,
    compressed: bool = True,
    additional: Any = None,
    ratios: tuple[int, ...] = (0, 4),
    **cache: Any,
) -> Any:
    text = SimpleNamespace(**({"compress_ratios": list(ratios)} if compressed else {}))
    settings = {"block_size": 16, "user_specified_block_size": False} | cache
    return SimpleNamespace(
        additional_config=additional or {},
        model_config=SimpleNamespace(
            hf_text_config=text, hf_config=SimpleNamespace(model_type="another"), use_mla=False
        ),
        cache_config=SimpleNamespace(enable_prefix_caching=True, **settings),
        compilation_config=SimpleNamespace(
            mode=CompilationMode.NONE, cudagraph_mode=None, cudagraph_capture_sizes=[1, 2]
        ),
        kernel_config=SimpleNamespace(),
        parallel_config=SimpleNamespace(
            enable_eplb=False,
            decode_context_parallel_size=1,
            worker_cls="auto",
            disable_custom_all_reduce=False,
            tensor_parallel_size=1,
        ),
        scheduler_config=SimpleNamespace(async_scheduling=True, max_num_seqs=2000),
        speculative_config=None,
        num_speculative_tokens=0,
    )


@pytest.fixture(autouse=True)
def _family(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "fork")
    use_family("A3")
    yield
    use_family(None)


def test_what_it_is() -> None:
    here = AscendNPUPlatform()
    assert here._enum is PlatformEnum.OOT
    assert (here.device_type, here.device_name, here.dispatch_key) == ("npu", "npu", "PrivateUse1")
    assert here.dist_backend == "hccl"
    assert here.get_device_communicator_cls().endswith("HCCLCommunicator")
    assert here.support_hybrid_kv_cache()
    assert not here.is_sleep_mode_available()
    assert here.num_compute_units() > 0
    assert here.supported_dtypes[0] is torch.bfloat16


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        (None, "FULL_DECODE_ONLY"),
        ("FULL_AND_PIECEWISE", "FULL_DECODE_ONLY"),
        ("FULL_DECODE_ONLY", "FULL_DECODE_ONLY"),
        ("NONE", "NONE"),
    ],
)
def test_graphs_hold_whole_decode_steps_or_nothing(asked: str | None, chosen: str) -> None:
    from vllm.config import CUDAGraphMode

    given = config()
    given.compilation_config.cudagraph_mode = asked and CUDAGraphMode[asked]
    AscendNPUPlatform.check_and_update_config(given)
    assert given.compilation_config.cudagraph_mode is CUDAGraphMode[chosen]
    assert given.compilation_config.cudagraph_capture_sizes == [1, 2]


def test_our_worker_and_the_family_s_blocks() -> None:
    import os

    given = config()
    AscendNPUPlatform.check_and_update_config(given)
    assert given.parallel_config.worker_cls == "ascend_vllm_plugin.npu.worker.NPUWorker"
    assert given.cache_config.block_size == 256
    assert given.scheduler_config.async_scheduling
    assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    given = config()
    given.parallel_config.worker_cls = "another.Worker"
    given.speculative_config = SimpleNamespace(rejection_sample_method="standard", method="mtp")
    AscendNPUPlatform.check_and_update_config(given)
    assert given.parallel_config.worker_cls == "another.Worker"
    assert not given.scheduler_config.async_scheduling


@pytest.mark.parametrize(("size", "taken"), [(128, True), (512, True), (64, False)])
def test_block_sizes_that_the_family_has(size: int, taken: bool) -> None:
    given = config(block_size=size, user_specified_block_size=True)
    if taken:
        AscendNPUPlatform.check_and_update_config(given)
        assert given.cache_config.block_size == size
        return
    with pytest.raises(InvalidInputError, match=r"block_size=64.*A3.*256 or 512 or 128"):
        AscendNPUPlatform.check_and_update_config(given)


def test_a_block_holds_a_whole_row_of_every_layer() -> None:
    """vLLM would divide by the rows of a block, which are none."""
    given = config(ratios=(0, 4, 128), block_size=64, user_specified_block_size=True)
    with pytest.raises(InvalidInputError, match=r"block_size=64.*A3.*of this model.*128 tokens"):
        AscendNPUPlatform.check_and_update_config(given)


def test_more_graphs_than_the_device_has_streams_for_are_not_captured(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from vllm.config import CUDAGraphMode

    for mode, kept in ((None, 600), ("NONE", 1500)):
        given = config()
        given.compilation_config.cudagraph_mode = mode and CUDAGraphMode[mode]
        given.compilation_config.cudagraph_capture_sizes = list(range(1, 1501))
        with caplog.at_level(logging.WARNING, logger="ascend_vllm_plugin"):
            AscendNPUPlatform.check_and_update_config(given)
        assert len(given.compilation_config.cudagraph_capture_sizes) == kept
    assert given.compilation_config.cudagraph_capture_sizes[-1] == 1500
    assert [one.getMessage()[:35] for one in caplog.records] == [
        "1500 captured sizes of 3 streams ea"
    ]


def test_sparse_models_are_refused_on_310p() -> None:
    with pytest.raises(InvalidInputError, match=r"sparse attention on 310P.*A2, A3 or A5"):
        AscendNPUPlatform.check_and_update_config(config(additional={"device_family": "310P"}))
    AscendNPUPlatform.check_and_update_config(config(compressed=False))


def test_an_unknown_switch_is_refused_with_the_closest() -> None:
    with pytest.raises(InvalidInputError, match="Did you mean device_family"):
        AscendNPUPlatform.check_and_update_config(config(additional={"device_famly": "A3"}))


def test_a_deepseek_that_cannot_be_served_stops_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(vllm_config: Any) -> None:
        raise InvalidInputError("value", "limit", "remedy")

    monkeypatch.setattr(platform, "check_deepseek", refuse)
    with pytest.raises(InvalidInputError, match="remedy"):
        AscendNPUPlatform.check_and_update_config(config())


def attention(**given: Any) -> AttentionSelectorConfig:
    settings: dict[str, Any] = {
        "head_size": 128, "dtype": torch.bfloat16, "kv_cache_dtype": "auto", "block_size": None
    }  # fmt: skip
    return AttentionSelectorConfig(**(settings | given))


@pytest.mark.parametrize("given", [{}, {"has_sink": True}, {"has_sliding_window": True}], ids=str)
def test_ordinary_models_get_the_dense_backend(given: dict[str, Any]) -> None:
    place = AscendNPUPlatform.get_attn_backend_cls(None, attention(**given))
    assert place == "ascend_attention.vllm.dense.backend.AscendAttentionBackend"
    assert AttentionBackendEnum.CUSTOM.get_path() == place


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"use_mla": True}, "MLA not supported"),
        ({"block_size": 64}, "block_size not supported"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype not supported"),
        ({"attn_type": "encoder_only"}, "attention type encoder_only"),
        ({"use_mm_prefix": True}, "multimodal"),
    ],
)
def test_attention_that_the_dense_backend_lacks_is_refused(
    given: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        AscendNPUPlatform.get_attn_backend_cls(None, attention(**given))


def test_backends_of_other_devices_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="FLASH_ATTN"):
        AscendNPUPlatform.get_attn_backend_cls(AttentionBackendEnum.FLASH_ATTN, attention())


def test_ordinary_models_run_uncompiled() -> None:
    given = config(compressed=False)
    given.compilation_config.mode = None
    AscendNPUPlatform.apply_config_platform_defaults(given)
    assert given.compilation_config.mode is CompilationMode.NONE
    AscendNPUPlatform.check_and_update_config(given)
    given.compilation_config.mode = CompilationMode.VLLM_COMPILE
    AscendNPUPlatform.apply_config_platform_defaults(given)
    with pytest.raises(InvalidInputError, match="VLLM_COMPILE"):
        AscendNPUPlatform.check_and_update_config(given)


def test_a_dtype_that_the_device_lacks_is_refused() -> None:
    AscendNPUPlatform.check_if_supports_dtype(torch.bfloat16)
    with pytest.raises(InvalidInputError, match=r"torch\.float64"):
        AscendNPUPlatform.check_if_supports_dtype(torch.float64)
