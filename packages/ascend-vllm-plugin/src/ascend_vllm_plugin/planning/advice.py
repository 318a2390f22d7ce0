"""What follows from a plan: why it does not fit, what would, and what a reader must know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from ascend_ops_core.devices import facts_of
from ascend_ops_core.errors import InvalidInputError

from ascend_vllm_plugin.planning.models import widest_tensor_parallel
from ascend_vllm_plugin.planning.plan import Plan, gib, make_plan
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.weights import Layout, WeightFormat

NOT_RUN = "not run on hardware"
_MOST_CARDS = 64
_MUCH_PADDING = 0.25


def refusal(plan: Plan) -> InvalidInputError | None:
    """Why a plan does not fit, with the largest context that does; None if it fits."""
    if plan.fits:
        return None
    asked = (
        f"max_model_len={plan.max_model_len} with {plan.request.concurrency} request(s) at once "
        f"on {plan.request.layout.cards} card(s)"
    )
    longest = plan.longest_context
    if longest:
        limit = (
            f"the caches have {gib(plan.cache_bytes)}, {plan.num_blocks} blocks; the largest "
            f"context that fits is {longest} tokens"
        )
        return InvalidInputError(asked, limit, _remedy(plan))
    over = plan.fixed_bytes - plan.budget
    if over > 0:
        limit = (
            f"no context fits: weights and estimates take {gib(plan.fixed_bytes)} of the "
            f"{gib(plan.budget)} that vLLM may use, {gib(over)} too much"
        )
    else:
        limit = f"no context fits: the caches have {gib(plan.cache_bytes)}"
    return InvalidInputError(asked, limit, _remedy(plan))


def advice(plan: Plan) -> list[str]:
    """Changes of which each one makes the plan fit, checked by planning it."""
    request, longest = plan.request, plan.longest_context
    found = []
    if longest:
        found.append(f"lower --max-model-len to {longest}")
    fewer = _most_requests(plan)
    if fewer:
        found.append(f"hold {fewer} request(s) at once instead of {request.concurrency}")
    cards = _enough_cards(plan)
    if cards is not None:
        tensor, data, expert = cards.tensor, cards.data, cards.expert
        found.append(f"use {cards.cards} cards (--tp {tensor} --dp {data} --ep {expert})")
    if plan.weight_format is WeightFormat.MODEL and request.device != "cpu":
        smaller = _try(plan, replace(request, weight_format=WeightFormat.W8A8.value))
        if smaller is not None and smaller.fits:
            found.append("store the weights in 8 bits (--weight-format w8a8)")
    return found


def _remedy(plan: Plan) -> str:
    found = advice(plan)
    if not found:
        return f"Neither a shorter context nor fewer requests nor {_MOST_CARDS} cards would do."
    text = "; or ".join(found)
    return f"{text[0].upper()}{text[1:]}."


def notes(plan: Plan) -> Iterator[str]:
    """What a reader must know before relying on the figures."""
    request = plan.request
    if request.device != "cpu":
        yield f"{request.device}: {NOT_RUN}; every figure is computed, none is measured."
    if plan.weight_format in (WeightFormat.FP8, WeightFormat.FP8_MXFP4) and request.device != "cpu":
        taken = facts_of(request.device).dtypes
        if torch.float8_e4m3fn not in (taken.value or ()):
            yield (
                f"{request.device} takes no float8 ({taken.source}): weights would have to be "
                "converted. Plan with --weight-format w8a8."
            )
    if request.layout.context > 1:
        yield (
            "dcp: caches are shared out by an engine with --decode-context-parallel-size "
            f"{request.layout.context}."
        )
    if request.layout.expert > 1:
        yield "ep: whole experts are shared out by an engine with --enable-expert-parallel."
    if request.captures.dropped:
        yield f"graphs: {request.captures.reason}."
    main = plan.pool.groups[0]
    if any(group.states for group in plan.pool.groups):
        yield from _state_padding(plan)
    elif plan.pool.padding(main) > _MUCH_PADDING:
        empty = f"{100 * plan.pool.padding(main):.0f} %"
        yield (
            f"{empty} of the blocks of compressed caches are padding: vLLM makes every "
            f"block as long as that of the longest group ({plan.pool.stride} bytes), and the "
            f"compressed caches fill {main.bytes_used} of it."
        )
    needed, buffer = plan.needed_hccl.mib, request.hccl_buffer_mib
    if needed > buffer:
        yield (
            f"HCCL_BUFFSIZE={buffer} is smaller than the {needed} MiB that this layout asks for "
            f"({plan.needed_hccl.how}). Set it to {needed}, and plan again with "
            f"--hccl-buffsize {needed}."
        )


def _state_padding(plan: Plan) -> Iterator[str]:
    for group in plan.pool.groups:
        empty = plan.pool.padding(group)
        if empty > _MUCH_PADDING:
            what = "latents" if group.states is None else "recurrent states"
            yield (
                f"{100 * empty:.0f} % of a block of {len(group.caches)} {what} are padding: every "
                f"page is as long as that of {group.block_tokens} tokens, and every group has room "
                "for as many layers as the largest."
            )


def _most_requests(plan: Plan) -> int:
    low, high = 0, plan.request.concurrency
    while low < high:
        middle = (low + high + 1) // 2
        trial = replace(plan, request=replace(plan.request, concurrency=middle))
        low, high = (middle, high) if trial.fits else (low, middle - 1)
    return low


def _enough_cards(plan: Plan) -> Layout | None:
    layout = plan.request.layout
    tensor, data = layout.tensor, layout.data
    # Ranks beyond the output groups exchange rows in every layer: to be asked for, not advised.
    groups = widest_tensor_parallel(plan.source.spec)
    while 2 * tensor * data <= _MOST_CARDS:
        shared = layout.expert > 1
        for wider in ((2 * tensor, data), (tensor, 2 * data)):
            if wider[0] > max(tensor, groups):
                continue
            experts = wider[0] * wider[1] if shared else 1
            candidate = Layout(*wider, experts, layout.context, layout.redundant)
            trial = _try(plan, replace(plan.request, layout=candidate))
            if trial is not None and trial.fits:
                return candidate
        narrower = replace(plan.request, layout=Layout(2 * tensor, data, 1, layout.context))
        if 2 * tensor <= groups and _try(plan, narrower) is not None:
            tensor *= 2
        else:
            data *= 2
    return None


def _try(plan: Plan, request: PlanRequest) -> Plan | None:
    try:
        return make_plan(plan.source, request)
    except InvalidInputError:
        return None
