"""Schedules over several streams; they are the same for every package (`ascend_ops_core.overlap`)."""

from __future__ import annotations

from ascend_ops_core.overlap import MAIN, OverlapPlan, Task, missing_orders, run

__all__ = ["MAIN", "OverlapPlan", "Task", "missing_orders", "run"]
