"""Ranks that are processes: started once, then given one call after the other."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
import tempfile
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import torch
from torch import distributed

__all__ = ["RankProcesses", "load_file"]

_PATIENCE_S = 120.0


class RankProcesses:
    """Processes of a gloo group that run the functions of one file.

    Leave it as a context; a rank that fails makes the call fail with its traceback, and ends all.

    Args:
        ranks: number of processes.
        file: a Python file, loaded in each process; its functions take keyword arguments that can
            be pickled.
        environment: variables of the processes, besides those of this one.
    """

    def __init__(self, ranks: int, file: Path, environment: dict[str, str] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ascend-ranks-")
        rendezvous = str(Path(self._folder.name) / "rendezvous")
        # Its server imports torch once for all ranks, and has no threads that a fork would lose.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(ranks):
            here, there = context.Pipe()
            place = rank, ranks, rendezvous
            process = context.Process(
                target=_serve, args=(place, str(file), environment or {}, there), daemon=True
            )
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def __enter__(self) -> RankProcesses:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def call(self, function: str, **arguments: Any) -> list[Any]:
        """Call a function of the file on all ranks at once.

        Args:
            function: its name.
            arguments: the same for each rank.

        Returns:
            The results by rank.

        Raises:
            RuntimeError: a rank failed or did not answer; no further call is possible.
        """
        if not self._pipes:
            raise RuntimeError("the ranks were ended by an earlier failure")
        for pipe in self._pipes:
            pipe.send((function, arguments))
        results: list[Any] = []
        failures: list[str] = []
        for rank, pipe in enumerate(self._pipes):
            # A rank that failed leaves the others waiting for it in a collective.
            patience = 5.0 if failures else _PATIENCE_S
            if not pipe.poll(patience):
                failures.append(f"rank {rank}: no answer in {patience:.0f} s")
                continue
            try:
                worked, result = pipe.recv()
            except EOFError:
                worked, result = False, "the process ended"
            if worked:
                results.append(result)
            else:
                failures.insert(0, f"rank {rank}: {result}")
        if failures:
            self.close()
            raise RuntimeError("\n".join(failures))
        return results

    def close(self) -> None:
        """End the processes; a second call does nothing."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=2)
            if process.is_alive():
                process.kill()
                process.join()
        self._pipes, self._processes = [], []
        self._folder.cleanup()


def _serve(
    place: tuple[int, int, str], file: str, environment: dict[str, str], pipe: Connection
) -> None:
    rank, ranks, rendezvous = place
    os.environ.update(environment)
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks
    )
    module = load_file(Path(file))
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            break
        try:
            pipe.send((True, getattr(module, function)(**arguments)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
    distributed.destroy_process_group()


def load_file(file: Path) -> ModuleType:
    """Import a file that lies in no package, as the ranks do."""
    specification = importlib.util.spec_from_file_location(file.stem, file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    # Results that are classes of the file are pickled by its name.
    sys.modules[file.stem] = module
    specification.loader.exec_module(module)
    return module
