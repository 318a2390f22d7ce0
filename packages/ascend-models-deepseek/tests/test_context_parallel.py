"""Attention layers whose contexts ranks share, in threads, against one process that has all."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_attention.layers.context_parallel import ContextParallel
from ascend_models_deepseek.context_parallel import (
    check_context_parallel,
    refuse_context_parallel,
)
from ascend_models_deepseek.testing.attention_layers import (
    HEADS,
    LOCK,
    STEPS,
    Engine,
    Layers,
    inputs,
    without_engine,
)
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing import assert_close
from ascend_ops_core.testing.simulated_group import SimulatedGroup, on_grid, on_ranks


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Layers are built and run without an engine."""
    return without_engine(monkeypatch.setattr)


Spread = Callable[[Callable[[SimulatedGroup, int, int], list[torch.Tensor]]], Any]


def one_group(ranks: int) -> Spread:
    """All ranks that split the heads share contexts."""
    return lambda run: on_ranks(ranks, lambda group: run(group, group.rank_in_group, ranks))


def two_groups(run: Callable[[SimulatedGroup, int, int], list[torch.Tensor]]) -> Any:
    """Four ranks split the heads, and two neighbours share contexts."""
    return on_grid(2, 2, lambda along, _, everyone: run(along, everyone.rank_in_group, 4))


@pytest.mark.parametrize("kind", ["mla", "sfa", "int8", "records", "shared"])
@pytest.mark.parametrize(
    ("spread", "interleave"),
    [(one_group(2), 1), (one_group(2), 16), (one_group(4), 4), (two_groups, 2)],
    ids=["2 ranks", "2 ranks, whole blocks", "4 ranks", "2 groups of 2"],
)
@torch.inference_mode()
def test_ranks_that_share_contexts_equal_one_process(
    kind: str, spread: Spread, interleave: int, metadata: dict[str, Any]
) -> None:
    whole = Engine(Layers(kind, 0, 1, None), None, metadata)
    expected = [
        whole.step(counts, special, *inputs(counts, number))
        for number, (counts, special) in enumerate(STEPS)
    ]

    def run(group: SimulatedGroup, rank: int, ranks: int) -> list[torch.Tensor]:
        exchange = ContextParallel(group, interleave, HEADS // ranks)
        # Random numbers come of a generator that the threads share.
        with LOCK:
            layers = Layers(kind, rank, ranks, exchange)
        engine = Engine(layers, exchange, metadata)
        return [
            engine.step(counts, special, *inputs(counts, number))
            for number, (counts, special) in enumerate(STEPS)
        ]

    found = spread(run)
    for number, want in enumerate(expected):
        got = torch.stack([one[number] for one in found]).sum(0)
        assert want.abs().max() > 0.05
        assert_close(got, want.double(), scale=8)


def engine(**changes: Any) -> Any:
    given = {"dcp": 1, "pcp": 1, "additional": {}} | changes
    return SimpleNamespace(
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=given["dcp"], prefill_context_parallel_size=given["pcp"]
        ),
        additional_config=given["additional"],
    )


def test_settings_that_do_not_go_together_are_refused() -> None:
    check_context_parallel(engine(dcp=4))
    refuse_context_parallel(engine())
    check_context_parallel(engine(dcp=2, additional={"latent_cache_dtype": "int8"}))
    with pytest.raises(InvalidInputError, match=r"decode_context_parallel_size=2.*DeepSeek-V4"):
        refuse_context_parallel(engine(dcp=2))
    for check in (check_context_parallel, refuse_context_parallel):
        with pytest.raises(InvalidInputError, match="prefill_context_parallel_size=2"):
            check(engine(pcp=2))
