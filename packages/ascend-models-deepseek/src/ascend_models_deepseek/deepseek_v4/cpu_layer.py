"""A decoder layer's step of a few tokens on a CPU, as one call.

A layer is ten operators, and calling them costs a decode step more than half of what they compute.
Here the same kernels call each other; what they round, and where, is the same.

Everything is numpy, bfloat16 as its bits. Shapes: T tokens, n streams, H hidden size, h heads, D
head width, L query rank, E experts, k of them per token, V vocabulary.
"""

from __future__ import annotations

from ascend_attention.layers.cpu_few_tokens import attention_step, plain
from ascend_attention.ops.mla.cpu import epilogue_few, prologue_few
from ascend_fused_moe.ops.experts.cpu import experts_few
from ascend_fused_moe.ops.routing.cpu import SCORING_CODES, choose_best, look_up
from ascend_ops_core.cpu_apart import apart
from ascend_ops_core.cpu_numeric import as_numpy
from ascend_ops_core.ops.hyper_connection.cpu import pre_few, spread
from ascend_ops_core.ops.linear.cpu import product_few
from numba import njit

__all__ = ["DONE", "ROUTE", "ROWS", "SCORING_CODES", "as_numpy", "layer_step", "plain"]

DONE, ROWS, ROUTE = 0, 1, 2
"""What :func:`layer_step` returns."""

# What a layer is made of is compiled by itself, and not again with the whole.
_pre, _spread, _product = apart(pre_few), apart(spread), apart(product_few)
_prologue, _attention, _epilogue = apart(prologue_few), apart(attention_step), apart(epilogue_few)
_experts = apart(experts_few)


@njit(cache=True)
def _route(logits, token_ids, routing, weights, ids):  # type: ignore[no-untyped-def]
    """False if a token is outside the table or its experts do not exist."""
    _, table, bias, code, renormalize, scale = routing
    if table.shape[0] == 0:
        choose_best(logits, bias, code, renormalize, scale, weights, ids)
        return True
    for t in range(token_ids.shape[0]):
        if token_ids[t] < 0 or token_ids[t] >= table.shape[0]:
            return False
    return look_up(logits, token_ids, table, code, renormalize, scale, weights, ids)


@njit(cache=True)
def layer_step(streams, token_ids, cos, sin, weights, attention, step, index, scratch, new):  # type: ignore[no-untyped-def]
    """The layer's new streams.

    Args:
        streams: ``[T, n, H]``.
        token_ids: ``[T]``.
        cos: ``[T, R / 2]`` float32.
        sin: the same.
        weights: ``LayerWeights``, plain.
        attention: ``LayerArrays`` of the attention, plain.
        step: ``StepArrays``, plain.
        index: scratch of the indexer.
        scratch: ``Scratch``, plain.
        new: ``[T, n, H]``, filled.

    Returns:
        :data:`DONE`; :data:`ROWS` if a row is outside its cache, and then nothing is written;
        :data:`ROUTE` if a token is outside the routing table or its experts do not exist.
    """
    before, prologue, epilogue, between_blocks, routing, experts = weights
    hidden, post, comb, latent, query, kv, attended, out, between, logits, shares, ids = scratch
    x, scale, base, iters, hc_eps, norm_eps, gain = before
    _pre(streams, x, scale, base, iters, hc_eps, norm_eps, gain, hidden, post, comb)
    wqa_wkv, wq_b, q_norm, kv_norm, eps = prologue
    _prologue(hidden, wqa_wkv, wq_b, q_norm, kv_norm, eps, cos, sin, latent, query, kv)
    if not _attention(hidden, latent, query, kv, cos, sin, attention, step, index, attended):
        return ROWS
    _epilogue(attended, epilogue[0], epilogue[1], cos, sin, out)
    _spread(out, streams, post, comb, between)
    x, scale, base, iters, hc_eps, norm_eps, gain = between_blocks
    _pre(between, x, scale, base, iters, hc_eps, norm_eps, gain, hidden, post, comb)
    _product(hidden, routing[0], logits)
    if not _route(logits, token_ids, routing, shares, ids):
        return ROUTE
    w13, w2, shared13, shared2, activation = experts
    _experts(hidden, w13, w2, shared13, shared2, shares, ids, activation, out)
    _spread(out, between, post, comb, new)
    return DONE
