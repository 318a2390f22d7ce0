"""Which device a worker takes, by how its replica was started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("changes", "before"),
    [
        ({}, 0),
        ({"data_parallel_rank_local": 3}, 6),
        ({"data_parallel_rank_local": None, "data_parallel_index": 2}, 4),
        # vLLM hands each replica the list of its own devices.
        ({"data_parallel_rank_local": 3, "assigned_physical_gpu_ids": [6, 7]}, 0),
        ({"data_parallel_rank_local": 3, "distributed_executor_backend": "external_launcher"}, 0),
        ({"data_parallel_rank_local": 3, "data_parallel_backend": "ray"}, 0),
        ({"data_parallel_rank_local": 3, "nnodes_within_dp": 2}, 0),
    ],
)
def test_ranks_in_front_of_a_replica(changes: dict[str, Any], before: int) -> None:
    from ascend_vllm_plugin.npu.worker import NPUWorker

    parallel = {
        "assigned_physical_gpu_ids": None,
        "distributed_executor_backend": "mp",
        "data_parallel_backend": "mp",
        "nnodes_within_dp": 1,
        "data_parallel_rank_local": 0,
        "data_parallel_index": 0,
        "pipeline_parallel_size": 1,
        "tensor_parallel_size": 2,
    }
    worker = SimpleNamespace(parallel_config=SimpleNamespace(**(parallel | changes)))
    assert NPUWorker._ranks_of_other_replicas(worker) == before  # type: ignore[arg-type]
