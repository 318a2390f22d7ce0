"""Which part of a layer's attention runs beside which.

In a c4 layer the indexer depends on the layer's input and on the query latent alone, so it runs on
a stream of its own beside the window's and the compressor's writes, until attention needs what it
selected. In front of it the key-value row needs only the first projection, so its norm, rotation
and write (vector cores) run beside the query's second projection (cube cores).

Not run on hardware: what overlaps there has not been measured.
"""

from __future__ import annotations

from ascend_attention.overlap import MAIN, OverlapPlan, Task

INDEXER = "indexer"
VECTOR = "vector"

IndexerOverlapPlan = OverlapPlan(
    inputs=("hidden", "q_latent", "query", "kv"),
    start="inputs",
    tasks=(
        Task(
            "index_compress",
            INDEXER,
            reads=("hidden",),
            writes=("index_state", "index_key"),
            waits=("inputs",),
        ),
        Task("index_query", INDEXER, reads=("hidden", "q_latent"), writes=("index_query",)),
        Task(
            "select_entries",
            INDEXER,
            reads=("index_query", "index_key"),
            writes=("entries",),
            records="selected",
        ),
        Task("write_window", MAIN, reads=("kv",), writes=("window",)),
        Task("compress", MAIN, reads=("hidden",), writes=("state", "compressed")),
        Task(
            "attend",
            MAIN,
            reads=("query", "window", "compressed", "entries"),
            writes=("out",),
            waits=("selected",),
        ),
    ),
)
"""Attention of a c4 layer."""

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
        Task(
            "finish_query",
            MAIN,
            reads=("query_rows",),
            writes=("query",),
            waits=("kv_ready",),
        ),
    ),
)
"""The prologue: the key-value row is finished on vector cores beside the second projection."""
