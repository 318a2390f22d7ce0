"""Six processes for all tests of this folder, and the comparison with one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from ascend_fused_moe.testing.processes import RankProcesses, load_file
from ascend_ops_core.testing import assert_close

WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class Ranks:
    """The processes, and what they run.

    Attributes:
        processes: four or six of them.
        worker: the file that they have loaded.
    """

    processes: RankProcesses
    worker: ModuleType

    def check(self, *layers: dict[str, Any], choices: bool = True) -> list[list[dict[str, Any]]]:
        """Run layers on their ranks; compare outputs, choices and loads with one process.

        Args:
            layers: the arguments of each layer.
            choices: False where passes reorder what a rank routes, and keep the last load alone.

        Returns:
            For each layer the results by rank.
        """
        specs = [self.worker.Layer(**layer) for layer in layers]
        by_rank = self.processes.call("run_all", layers=specs)
        results = []
        for i, spec in enumerate(specs):
            of_layer = [one[i] for one in by_rank if one[i] is not None]
            assert len(of_layer) == spec.ranks, spec
            self._compare_outputs(spec, of_layer)
            if choices:
                self._compare_choices(spec, of_layer)
            results.append(of_layer)
        return results

    def _compare_outputs(self, spec: Any, results: list[dict[str, Any]]) -> None:
        for d, expected in enumerate(self.worker.by_brute_force(spec)):
            part = results[d * spec.tp : (d + 1) * spec.tp]
            got = [torch.from_numpy(one["output"]).to(spec.dtype) for one in part]
            for one in [torch.cat(got)] if spec.sequence_parallel else got:
                assert_close(one, expected, scale=4)

    def _compare_choices(self, spec: Any, results: list[dict[str, Any]]) -> None:
        real = [
            part[: len(part) - (spec.padding[d] if spec.padding else 0)]
            for d, part in enumerate(self.worker.chosen_by_sorting(spec))
        ]
        everywhere = list(chain.from_iterable(real))
        for d in range(spec.dp):
            chosen = [one["chosen"] for one in results[d * spec.tp : (d + 1) * spec.tp]]
            if spec.method == "all_gather":
                assert all(one == everywhere for one in chosen), spec
            else:
                assert list(chain.from_iterable(chosen)) == real[d], spec
        if spec.expert_parallel and spec.ranks > 1:
            _compare_load(spec, results, everywhere)


def _compare_load(spec: Any, results: list[dict[str, Any]], chosen: list[list[int]]) -> None:
    """Every rank has places for the same number of experts, and each its tokens."""
    each, more = divmod(spec.experts, spec.ranks)
    load = []
    for rank, one in enumerate(results):
        count = each + (rank < more)
        assert len(one["load"]) == each + (more > 0)
        assert not any(one["load"][count:])
        load += one["load"][:count]
    assert load == [sum(row.count(e) for row in chosen) for e in range(spec.experts)]


@pytest.fixture(scope="session")
def npu_ranks() -> Iterator[Ranks]:
    with RankProcesses(4, WORKER, {"ASCEND_TEST_DEVICE": "npu"}) as processes:
        processes.call("set_up")
        yield Ranks(processes, load_file(WORKER))


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    with RankProcesses(6, WORKER) as processes:
        processes.call("set_up")
        yield Ranks(processes, load_file(WORKER))
