"""The prologue of DeepSeek-V4's attention, split between cube and vector cores.

The key-value row needs only the first projection, so its norm and rotation (vector cores) run on a
stream of their own beside the query's second projection (cube cores). Not run on hardware: what
overlaps there has not been measured.
"""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.ops.linear import linear
from ascend_ops_core.overlap import MAIN, OverlapPlan, Task, run

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


def split_prologue(
    hidden: torch.Tensor,
    wqa_wkv: torch.Tensor,
    wq_b: torch.Tensor,
    q_norm: torch.Tensor,
    kv_norm: torch.Tensor,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> Prologue:
    """What :func:`ascend_attention.ops.mla.mla_prologue` gives, by the plan on a device.

    A CPU has one operator for all of it.
    """
    if hidden.device.type == "cpu":
        return mla_prologue(hidden, wqa_wkv, wq_b, q_norm, kv_norm, eps, cos, sin)
    made: dict[str, torch.Tensor] = {}

    def project_down() -> None:
        made["latent_kv"] = linear(hidden, wqa_wkv)

    def finish_kv() -> None:
        made["kv"] = prologue.finish_kv(made["latent_kv"], kv_norm, eps, cos, sin)

    def norm_latent() -> None:
        made["q_latent"] = prologue.norm_latent(made["latent_kv"], q_norm, eps)

    def project_up() -> None:
        made["query_rows"] = linear(made["q_latent"], wq_b)

    def finish_query() -> None:
        width = kv_norm.shape[0]
        made["query"] = prologue.finish_query(made["query_rows"], width, eps, cos, sin)

    module: Any = getattr(torch, hidden.device.type)
    work = (project_down, finish_kv, norm_latent, project_up, finish_query)
    run(CVSplitProloguePlan, {one.__name__: one for one in work}, hidden.device)
    # It was allocated on the other stream, and is read on this one.
    made["kv"].record_stream(module.current_stream(hidden.device))
    return Prologue(made["q_latent"], made["query"], made["kv"])
