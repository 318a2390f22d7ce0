"""Shared memory of a killed engine in the way of one that is given its port."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ascend_vllm_plugin.compat import stale_shared_memory
from ascend_vllm_plugin.compat.stale_shared_memory import replace_stale_memory
from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed


def test_a_rank_removes_the_file_of_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def init(self: Any) -> int:
        seen.append(sorted(one.name for one in tmp_path.iterdir()))
        return 7

    monkeypatch.setattr(_CPUSHMDistributed, "_init_cpu_shm", init)
    monkeypatch.setattr(stale_shared_memory, "_FOLDER", tmp_path)
    replace_stale_memory()
    replace_stale_memory()
    for name in ("32859-tp:0-[0-1]-cpushm_0", "32859-tp:0-[0-1]-cpushm_1", "32860-cpushm_1"):
        (tmp_path / name).touch()
    group: Any = SimpleNamespace(
        group_name="32859-tp:0-[0-1]-cpushm", communicator=SimpleNamespace(rank=1)
    )
    assert _CPUSHMDistributed._init_cpu_shm(group) == 7
    # Another rank's may be new already.
    assert seen == [["32859-tp:0-[0-1]-cpushm_0", "32860-cpushm_1"]]


def test_vllm_still_names_files_so_and_fails_where_one_is() -> None:
    """Tells when upstream has mended it: the file that a rank makes may be there already."""
    import torch
    import vllm._custom_ops  # noqa: F401

    name = f"ascend-test-{id(object())}-cpushm"
    stale = Path("/dev/shm") / f"{name}_0"
    stale.touch()
    try:
        with pytest.raises(RuntimeError, match="errno: 17"):
            torch.ops._C.init_shm_manager(name, 2, 0, 1)
    finally:
        stale.unlink()
