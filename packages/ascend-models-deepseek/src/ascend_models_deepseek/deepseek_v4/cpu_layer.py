"""A decoder layer's step of a few tokens on a CPU, as four kernels with attention between them.

A layer is ten operators, and calling them costs a decode step more than half of what they compute.
Here the same kernels call each other; what they round, and where, is the same.

Everything is numpy, bfloat16 as its bits. Shapes: T tokens, n streams, H hidden size.
"""

from __future__ import annotations

from ascend_attention.layers.cpu_few_tokens import write_and_project_few
from ascend_attention.ops.mla.cpu import epilogue_few, prologue_few
from ascend_fused_moe.ops.experts.cpu import experts_few
from ascend_fused_moe.ops.routing.cpu import SCORING_CODES, choose_best, look_up
from ascend_ops_core.cpu_numeric import as_numpy
from ascend_ops_core.ops.hyper_connection.cpu import pre_few, spread
from ascend_ops_core.ops.linear.cpu import product_few
from numba import njit

__all__ = ["SCORING_CODES", "as_numpy", "before_attention", "behind_attention", "experts"]


@njit(cache=True)
def before_attention(  # type: ignore[no-untyped-def]
    streams, connection, hidden, post, comb, prologue, cos, sin, latent, query, kv, writes
):
    """Collapse, prologue, and what goes to the caches; False if a row is outside its cache.

    Args:
        streams: ``[T, n, H]``.
        connection: arguments of ``pre_few`` between the streams and its results.
        hidden: ``[T, H]``, filled.
        post: ``[T, n]``, filled.
        comb: ``[T, n, n]``, filled.
        prologue: weights and epsilon of ``prologue_few``.
        cos: ``[T, R / 2]``.
        sin: the same.
        latent: ``[T, L]``, filled.
        query: ``[T, h, D]``, filled.
        kv: ``[T, D]``, filled.
        writes: arguments of ``write_and_project_few`` behind the tokens.
    """
    pre_few(streams, *connection, hidden, post, comb)
    prologue_few(hidden, *prologue, cos, sin, latent, query, kv)
    return write_and_project_few(hidden, latent, kv, *writes)


@njit(cache=True)
def behind_attention(  # type: ignore[no-untyped-def]
    attended, wo_a, wo_b, cos, sin, out, streams, post, comb, between,
    connection, hidden, gate, logits, token_ids, table, bias, code, renormalize, scale,
    weights, ids,
):  # fmt: skip
    """Output projection, the streams between the blocks, and the routing of the experts.

    Args:
        attended: ``[T, h, D]``.
        wo_a: see ``epilogue_few``.
        wo_b: the same.
        cos: ``[T, R / 2]``.
        sin: the same.
        out: ``[T, H]``, filled with the attention block's output.
        streams: ``[T, n, H]``, the layer's input.
        post: of the attention block.
        comb: the same.
        between: ``[T, n, H]``, filled with the streams behind the attention block.
        connection: arguments of ``pre_few`` of the expert block.
        hidden: ``[T, H]``, filled with the expert block's input.
        gate: ``[E, H]``.
        logits: ``[T, E]``, filled.
        token_ids: ``[T]``.
        table: ``[V, k]`` experts of every token; of no rows where scores choose.
        bias: ``[E]`` float32.
        code: of the scoring function.
        renormalize: whether weights sum to 1.
        scale: factor on weights.
        weights: ``[T, k]`` float32, filled.
        ids: ``[T, k]`` int64, filled.

    Returns:
        False if a token is outside the table or its experts do not exist.
    """
    epilogue_few(attended, wo_a, wo_b, cos, sin, out)
    spread(out, streams, post, comb, between)
    pre_few(between, *connection, hidden, post, comb)
    product_few(hidden, gate, logits)
    if table.shape[0] == 0:
        choose_best(logits, bias, code, renormalize, scale, weights, ids)
        return True
    for t in range(token_ids.shape[0]):
        if token_ids[t] < 0 or token_ids[t] >= table.shape[0]:
            return False
    return look_up(logits, token_ids, table, code, renormalize, scale, weights, ids)


@njit(cache=True)
def experts(  # type: ignore[no-untyped-def]
    hidden, w13, w2, shared13, shared2, weights, ids, limit, out, streams, post, comb, new
):
    """Experts, and the layer's new streams.

    Args:
        hidden: ``[T, H]``.
        w13: ``[E, 2 * I, H]``.
        w2: ``[E, H, I]``.
        shared13: ``[2 * S, H]``; of no rows without a shared expert.
        shared2: ``[H, S]``.
        weights: ``[T, k]`` float32.
        ids: ``[T, k]`` int64.
        limit: of the activation.
        out: ``[T, H]``, filled with the block's output.
        streams: ``[T, n, H]`` behind the attention block.
        post: of the expert block.
        comb: the same.
        new: ``[T, n, H]``, filled.
    """
    experts_few(hidden, w13, w2, shared13, shared2, weights, ids, limit, out)
    spread(out, streams, post, comb, new)
