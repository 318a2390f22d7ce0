"""The launcher: no empty launch, never more programs than a grid may have."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core import InvalidInputError
from ascend_ops_core.devices import FAMILIES, device_family
from ascend_ops_core.launch import MAX_PROGRAMS, Launch, executor, launch, recorded_launches


class Kernel:
    """Stands for a jit function: kernel[grid](...)."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[int, ...], dict[str, object]]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> object:
        return lambda **arguments: self.calls.append((grid, arguments))


def test_no_work_is_not_launched() -> None:
    kernel = Kernel()
    launch(kernel, 0, {}, {})
    with recorded_launches() as found:
        launch(kernel, 0, {}, {})
    assert kernel.calls == []
    assert found == []


@pytest.mark.parametrize("family", ["A2", "A3", "A5"])
@pytest.mark.parametrize("programs", [1, 7, 75_264, 10**9])
@pytest.mark.parametrize("cube", [False, True])
def test_the_grid_is_at_most_the_cores(family: str, programs: int, cube: bool) -> None:
    kernel = Kernel()
    with device_family(family) as facts:
        launch(kernel, programs, {"x": 1}, {"BLOCK": 2}, cube=cube)
    ((grid, arguments),) = kernel.calls
    cores = facts.cube_cores if cube else facts.vector_cores
    assert grid == (min(programs, cores),)
    assert grid[0] <= MAX_PROGRAMS
    assert arguments == {"x": 1, "BLOCK": 2}


def test_negative_work_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="programs=-1"):
        launch(Kernel(), -1, {}, {})


def test_an_executor_replaces_the_start_inside_its_block_only() -> None:
    kernel, seen = Kernel(), []
    with executor(seen.append):
        launch(kernel, 3, {"x": torch.empty(2, device="meta")}, {})
    assert [type(one) for one in seen] == [Launch]
    assert kernel.calls == []
    launch(kernel, 3, {}, {})
    assert len(kernel.calls) == 1


def test_the_family_of_a_block_ends_with_it() -> None:
    kernel = Kernel()
    with device_family("A5"):
        launch(kernel, 10**6, {}, {})
    launch(kernel, 10**6, {}, {})
    assert [grid for grid, _ in kernel.calls] == [
        (FAMILIES["A5"].vector_cores,),
        (FAMILIES["A2"].vector_cores,),
    ]
