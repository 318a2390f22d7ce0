"""Schedules over several streams, from :mod:`ascend_ops_core.overlap`, under their old name here."""

from __future__ import annotations

from ascend_ops_core.overlap import MAIN, OverlapPlan, Task, missing_orders, run

__all__ = ["MAIN", "OverlapPlan", "Task", "missing_orders", "run"]
