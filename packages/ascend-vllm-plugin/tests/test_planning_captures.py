"""Which decode steps are captured, and what the planner makes of them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from ascend_attention.layers.prologue import CVSplitProloguePlan
from ascend_vllm_plugin.planning.captures import (
    STREAM_BUDGET,
    STREAMS_OF_A_GRAPH,
    default_sizes,
    plan_captures,
)
from hypothesis import given
from hypothesis import strategies as st


@given(
    sizes=st.lists(st.integers(1, 3000), max_size=60),
    requests=st.integers(1, 600),
    query=st.integers(1, 5),
)
def test_sizes_are_whole_requests_within_the_step(
    sizes: list[int], requests: int, query: int
) -> None:
    plan = plan_captures(sizes, requests=requests, tokens_per_request=query)
    assert not plan.dropped
    assert not plan.reason
    assert list(plan.sizes) == sorted(set(plan.sizes))
    for size in plan.sizes:
        assert size % query == 0
        assert size <= min(requests * query, max(sizes))
        assert any(size - query < one <= size for one in sizes)


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_exceeds_the_streams_is_spread_evenly(ranks: int) -> None:
    asked = range(1, 2001)
    plan = plan_captures(asked, requests=5000, tensor_parallel=ranks)
    assert plan.streams == STREAMS_OF_A_GRAPH + (ranks > 1)
    assert len(plan.sizes) == STREAM_BUDGET // plan.streams
    assert (plan.sizes[0], plan.sizes[-1]) == (1, 2000)
    gaps = {after - before for before, after in pairwise(plan.sizes)}
    assert max(gaps) - min(gaps) <= 1
    assert sorted((*plan.sizes, *plan.dropped)) == list(asked)
    assert f"2000 captured sizes of {plan.streams} streams each exceed" in plan.reason
    assert "not run on hardware" in plan.reason


def test_a_graph_holds_the_streams_of_the_overlap_plans() -> None:
    from ascend_attention.vllm.dsa.plans import IndexerOverlapPlan

    streams = {*CVSplitProloguePlan.streams, *IndexerOverlapPlan.streams}
    assert len(streams) + 1 == STREAMS_OF_A_GRAPH


@pytest.mark.parametrize(
    ("tokens", "requests", "query"),
    [(2048, 128, 1), (2048, 256, 3), (100, 128, 1), (7, 3, 1), (8192, 1, 2), (1, 1, 1)],
)
def test_default_sizes_are_those_of_vllm(tokens: int, requests: int, query: int) -> None:
    from types import SimpleNamespace

    from vllm.config import CompilationConfig, CUDAGraphMode, VllmConfig

    config = SimpleNamespace(
        model_config=SimpleNamespace(enforce_eager=False),
        compilation_config=CompilationConfig(cudagraph_mode=CUDAGraphMode.FULL_DECODE_ONLY),
        scheduler_config=SimpleNamespace(max_num_seqs=requests, max_num_batched_tokens=tokens),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        num_speculative_tokens=query - 1,
        performance_mode="balanced",
    )
    VllmConfig._set_cudagraph_sizes(config)
    expected = config.compilation_config.cudagraph_capture_sizes
    assert default_sizes(tokens, requests, query) == expected
