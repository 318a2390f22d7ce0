"""The worker's profiler: torch_npu's, with arguments that its 2.13.0 takes, or a clear refusal."""

from __future__ import annotations

# vLLM imports the platform by itself; the platform cannot be the first to import vLLM.
from vllm.platforms.interface import PlatformEnum  # noqa: F401 # isort: skip

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_ops_core import InvalidInputError
from ascend_vllm_plugin.npu import simulated
from ascend_vllm_plugin.npu.profiler import make_profiler
from vllm.config import ProfilerConfig


class Profile:
    """``torch_npu.profiler.profile``, whose arguments have these names."""

    def __init__(
        self,
        *,
        activities: Any,
        on_trace_ready: Any,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
    ) -> None:
        self.log = [activities, on_trace_ready, record_shapes, profile_memory, with_stack]

    def start(self) -> None:
        self.log.append("started")

    def stop(self) -> None:
        self.log.append("stopped")


@pytest.fixture
def torch_npu(monkeypatch: pytest.MonkeyPatch) -> list[Profile]:
    made: list[Profile] = []

    def profile(**arguments: Any) -> Profile:
        made.append(Profile(**arguments))
        return made[-1]

    def handler(dir_name: str | None = None, worker_name: str | None = None) -> Any:
        return (dir_name, worker_name)

    profiler = SimpleNamespace(
        ProfilerActivity=SimpleNamespace(CPU="cpu", NPU="npu"),
        profile=profile,
        tensorboard_trace_handler=handler,
    )
    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace(profiler=profiler))
    return made


def config(folder: Path, **settings: Any) -> ProfilerConfig:
    return ProfilerConfig(profiler="torch", torch_profiler_dir=str(folder), **settings)


def test_host_and_device_are_recorded(torch_npu: list[Profile], tmp_path: Path) -> None:
    profiler = make_profiler(config(tmp_path, torch_profiler_record_shapes=True), "rank3", 3)
    profiler.start()
    profiler.step()
    profiler.stop()
    handler = (str(tmp_path), "rank3")
    assert torch_npu[0].log == [["cpu", "npu"], handler, True, False, True, "started", "stopped"]


def test_it_starts_late_and_stops_by_itself(torch_npu: list[Profile], tmp_path: Path) -> None:
    profiler = make_profiler(config(tmp_path, delay_iterations=2, max_iterations=1), "rank0", 0)
    profiler.start()
    profiler.step()
    assert "started" not in torch_npu[0].log
    for _ in range(3):
        profiler.step()
    assert torch_npu[0].log[-2:] == ["started", "stopped"]


def test_a_simulated_device_leaves_the_host_s_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(simulated, "installed", lambda: True)
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    profiler = make_profiler(config(tmp_path), "rank0", 0)
    assert "the host's work alone" in caplog.text
    profiler.start()
    torch.ones(3).sum()
    profiler.stop()
    assert [file.name[:5] for file in tmp_path.glob("*.json*")] == ["rank0"]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"profiler": None}, "profiler None.*profiler-config.profiler=torch"),
        ({"profiler": "cuda"}, "profiler 'cuda'"),
        ({"warmup_iterations": 2}, "warmup_iterations=2.*delay_iterations"),
        ({"wait_iterations": 1}, "wait_iterations=1"),
        ({}, r"torch_npu\.profiler.*no torch_npu.*msprof"),
    ],
)
def test_what_it_cannot_do_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], text: str
) -> None:
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    given = config(tmp_path)
    for name, value in settings.items():
        object.__setattr__(given, name, value)
    with pytest.raises(InvalidInputError, match=text):
        make_profiler(given, "rank0", 0)
