"""Which cores the workers get."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ascend_vllm_plugin.thread_binding import choose_binding, split_cores
from hypothesis import given, settings
from hypothesis import strategies as st

CORES = list(range(8))


def test_workers_on_one_node_share_its_cores_evenly() -> None:
    binding = split_cores(CORES, nodes=1, workers=2)
    assert binding is not None
    assert binding.value == "0,1,2,3|4,5,6,7"
    assert binding.reason == "2 workers on 1 NUMA node(s)"


def test_few_cores_all_compute() -> None:
    binding = split_cores([4, 9], nodes=1, workers=1)
    assert binding is not None
    assert binding.value == "4,9"
    assert split_cores(CORES[:4], 1, 1) is not None


def test_what_vllm_does_well_is_left_to_it() -> None:
    assert split_cores(CORES, nodes=1, workers=1) is None
    assert split_cores(CORES, nodes=2, workers=2) is None
    assert split_cores(CORES[:5], nodes=1, workers=1) is None


def test_more_workers_than_cores_are_not_bound() -> None:
    binding = split_cores([0, 1], nodes=1, workers=3)
    assert binding is not None
    assert binding.value == "nobind"
    assert "3 workers share 2 cores" in binding.reason


@settings(deadline=None)
@given(
    cores=st.lists(st.integers(0, 200), min_size=1, max_size=40, unique=True),
    nodes=st.integers(1, 4),
    workers=st.integers(1, 12),
)
def test_no_core_is_given_twice_and_every_worker_has_one(
    cores: list[int], nodes: int, workers: int
) -> None:
    binding = split_cores(cores, nodes, workers)
    if binding is None or binding.value == "nobind":
        return
    parts = [[int(core) for core in part.split(",")] for part in binding.value.split("|")]
    assert len(parts) == workers
    assert len({len(part) for part in parts}) == 1
    flat = [core for part in parts for core in part]
    assert len(set(flat)) == len(flat)
    assert set(flat) <= set(cores)
    assert len(cores) - len(flat) < workers


def test_the_machine_is_asked_for_allowed_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = [SimpleNamespace(id=core) for core in (7, 3, 5, 1)]
    from vllm.utils import cpu_resource_utils

    monkeypatch.setattr(cpu_resource_utils, "get_allowed_cpu_list", lambda: allowed)
    monkeypatch.setattr(cpu_resource_utils, "get_visible_memory_node", lambda: [0])
    binding = choose_binding(2)
    assert binding is not None
    assert binding.value == "1,3|5,7"
