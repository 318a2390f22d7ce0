"""The schedules of DeepSeek-V4's attention order everything that they overlap."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ascend_attention.layers.prologue import CVSplitProloguePlan
from ascend_attention.vllm.dsa.plans import IndexerOverlapPlan
from ascend_ops_core.overlap import OverlapPlan, missing_orders

PLANS = {"indexer": IndexerOverlapPlan, "prologue": CVSplitProloguePlan}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_every_order_is_given(plan: OverlapPlan) -> None:
    assert missing_orders(plan) == []
    assert len(plan.streams) == 1


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_no_wait_can_be_left_out(plan: OverlapPlan) -> None:
    for index, task in enumerate(plan.tasks):
        for event in task.waits:
            tasks = list(plan.tasks)
            tasks[index] = replace(task, waits=tuple(one for one in task.waits if one != event))
            assert missing_orders(replace(plan, tasks=tuple(tasks))), f"{task.name} needs {event}"
