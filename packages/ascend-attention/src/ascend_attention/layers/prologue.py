"""The prologue of DeepSeek-V4's attention, split between cube and vector cores.

The key-value row needs only the first projection, so its norm and rotation (vector cores) run on a
stream of their own beside the query's second projection (cube cores). Not run on hardware: what
overlaps there has not been measured.
"""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.overlap import MAIN, OverlapPlan, Task, bind
from ascend_ops_core.quantized_weights.weight import QuantizedWeight, project

from ascend_attention.ops.mla import Prologue, mla_prologue, prologue

VECTOR = "vector"

CVSplitProloguePlan = OverlapPlan(
    inputs=("hidden",),
    tasks=(
        Task("project_down", MAIN, reads=("hidden",), writes=("latent_kv",), records="projected"),
        Task(
            "finish_kv",
            VECTOR,
            reads=("latent_kv",),
            writes=("kv",),
            waits=("projected",),
            records="kv_ready",
        ),
        Task("norm_latent", MAIN, reads=("latent_kv",), writes=("q_latent",)),
        Task("project_up", MAIN, reads=("q_latent",), writes=("query_rows",)),
        Task("finish_query", MAIN, reads=("query_rows",), writes=("query",), waits=("kv_ready",)),
    ),
)

_PLAN = bind(
    CVSplitProloguePlan,
    "project_down",
    "finish_kv",
    "norm_latent",
    "project_up",
    "finish_query",
)


def split_prologue(
    hidden: torch.Tensor,
    wqa_wkv: torch.Tensor | QuantizedWeight,
    wq_b: torch.Tensor | QuantizedWeight,
    q_norm: torch.Tensor,
    kv_norm: torch.Tensor,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> Prologue:
    """What :func:`ascend_attention.ops.mla.mla_prologue` gives, by the plan on a device.

    A CPU has one operator for all of it where both weights are in the model's dtype; with
    quantised ones it runs the same steps one by one.
    """
    on_cpu = hidden.device.type == "cpu"
    if on_cpu and isinstance(wqa_wkv, torch.Tensor) and isinstance(wq_b, torch.Tensor):
        return mla_prologue(hidden, wqa_wkv, wq_b, q_norm, kv_norm, eps, cos, sin)
    made: dict[str, torch.Tensor] = {}

    def project_down() -> None:
        made["latent_kv"] = project(hidden, wqa_wkv)

    def finish_kv() -> None:
        made["kv"] = prologue.finish_kv(made["latent_kv"], kv_norm, eps, cos, sin)

    def norm_latent() -> None:
        made["q_latent"] = prologue.norm_latent(made["latent_kv"], q_norm, eps)

    def project_up() -> None:
        made["query_rows"] = project(made["q_latent"], wq_b)

    def finish_query() -> None:
        width = kv_norm.shape[0]
        made["query"] = prologue.finish_query(made["query_rows"], width, eps, cos, sin)

    work = (project_down, finish_kv, norm_latent, project_up, finish_query)
    if on_cpu:
        for step in work:
            step()
        return Prologue(made["q_latent"], made["query"], made["kv"])
    module: Any = getattr(torch, hidden.device.type)
    _PLAN.run(hidden.device, *work)
    # It was allocated on the other stream, and is read on this one.
    made["kv"].record_stream(module.current_stream(hidden.device))
    return Prologue(made["q_latent"], made["query"], made["kv"])
