"""Which part of a layer's attention runs beside which.

In a c4 layer the indexer depends on the layer's input and on the query latent alone, so it runs on
a stream of its own beside the window's and the compressor's writes, until attention needs what it
selected. Not run on hardware: what overlaps there has not been measured.
"""

from __future__ import annotations

from ascend_ops_core.overlap import MAIN, OverlapPlan, Task

INDEXER = "indexer"

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
