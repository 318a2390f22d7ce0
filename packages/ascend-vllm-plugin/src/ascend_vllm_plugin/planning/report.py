"""A plan as lines for a terminal, as JSON, and as the segments of a picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

from ascend_vllm_plugin.planning.advice import notes, refusal
from ascend_vllm_plugin.planning.cache_use import CacheUse
from ascend_vllm_plugin.planning.plan import Plan, gib
from ascend_vllm_plugin.planning.weights import parameters

COMPUTED = "computed"
_FEW = 8


@dataclass(frozen=True)
class Segment:
    """A share of a card's memory.

    Attributes:
        name: what it holds.
        bytes: how much.
        kind: ``weights``, ``estimate``, ``caches``, ``free`` or ``reserved``.
        how: how the figure came about.
    """

    name: str
    bytes: int
    kind: str
    how: str


def segments(plan: Plan) -> list[Segment]:
    """What the card's memory is used for, in order; they add up to it if the plan fits."""
    return [segment for segment in _segments(plan) if segment.bytes > 0]


def _segments(plan: Plan) -> Iterator[Segment]:
    for name, size in plan.weights.items():
        yield Segment(name, size, "weights", f"{COMPUTED} from the table of tensors")
    yield Segment("rotary tables", plan.rotary_bytes, "weights", COMPUTED)
    yield Segment("activations", plan.activations.bytes, "estimate", plan.activations.how)
    yield Segment("step buffers", plan.buffers.bytes, "estimate", plan.buffers.how)
    yield Segment("graphs", plan.graphs.bytes, "estimate", plan.graphs.how)
    yield Segment("HCCL buffers", plan.hccl.bytes, "estimate", plan.hccl.how)
    yield Segment("drafting", plan.drafting.bytes, "estimate", plan.drafting.how)
    yield Segment("load balancing", plan.balancing.bytes, "estimate", plan.balancing.how)
    yield Segment("block tables", plan.block_tables.bytes, "estimate", plan.block_tables.how)
    yield Segment("attention of a step", plan.attention.bytes, "estimate", plan.attention.how)
    how = f"{COMPUTED} as vLLM 0.27.1 allocates them"
    yield Segment("caches", plan.cache_bytes, "caches", how)
    free = plan.budget - plan.fixed_bytes - plan.cache_bytes
    yield Segment("free", free, "free", "left over within gpu_memory_utilization")
    yield Segment(
        "reserved",
        plan.memory_bytes.bytes - plan.budget,
        "reserved",
        f"the rest of 1 - gpu_memory_utilization ({plan.request.gpu_memory_utilization})",
    )


def as_json(plan: Plan) -> dict[str, Any]:
    """Everything that the plan says, sizes in bytes."""
    request, pool, refused = plan.request, plan.pool, refusal(plan)
    layout = request.layout
    return {
        "model": {
            "path": str(plan.source.path),
            "parameters": parameters(plan.source.spec),
            "dtype": _short(plan.dtype),
            "weight_format": plan.weight_format.value,
            "stored_bytes": plan.source.stored_bytes,
        },
        "request": {
            "device": request.device,
            "cards": layout.cards,
            "tensor_parallel": layout.tensor,
            "data_parallel": layout.data,
            "expert_parallel": layout.expert,
            "decode_context_parallel": layout.context,
            "redundant_experts": layout.redundant,
            "max_model_len": plan.max_model_len,
            "concurrency": request.concurrency,
            "max_num_batched_tokens": request.max_num_batched_tokens,
            "max_num_seqs": request.max_num_seqs,
            "speculative_tokens": request.speculative_tokens,
            "speculative_method": _method(plan),
            "o_proj": _projection(plan),
            "o_proj_tensor_parallel_size": request.o_proj_tensor_parallel_size,
        },
        "card": {
            "memory": plan.memory_bytes.bytes,
            "memory_source": plan.memory_bytes.how,
            "budget": plan.budget,
            "segments": [
                {"name": s.name, "bytes": s.bytes, "kind": s.kind, "how": s.how}
                for s in segments(plan)
            ],
        },
        "caches": [
            {
                "role": use.role.value,
                "compress_ratio": use.compress_ratio,
                "layers": use.layers,
                "block_tokens": use.block_tokens,
                "rows_per_block": use.rows,
                "width": use.width,
                "dtype": _short(use.dtype),
                "scales": None
                if use.scales is None
                else {
                    "dtype": _short(use.scales.dtype),
                    "count": use.scales.count,
                    "bfloat16_values": use.scales.rotary or 0,
                },
                "row_bytes": use.row_bytes,
                "window": use.window,
                "states": use.states,
                "request_bytes": use.request_bytes,
            }
            for use in plan.caches
        ],
        "pool": {
            "num_blocks": plan.num_blocks,
            "block_bytes": pool.stride,
            "bytes_to_admit_one_request": pool.bytes_to_admit(
                plan.max_model_len, request.load.tokens_in_flight
            ),
            "blocks_needed": pool.blocks_of(request.load, plan.max_model_len),
            "max_concurrency": plan.max_concurrency,
            "groups": [
                {
                    "roles": sorted({cache.kind.role.value for cache in group.caches}),
                    "caches": len(group.caches),
                    "block_tokens": group.block_tokens,
                    "window": group.window,
                    "bytes_used": group.bytes_used,
                    "padding": pool.padding(group),
                    "blocks_per_request": group.blocks_at_most(
                        plan.max_model_len, request.load.tokens_in_flight
                    ),
                }
                for group in pool.groups
            ],
        },
        "graphs": {
            "sizes": list(request.captures.sizes),
            "dropped": list(request.captures.dropped),
            "streams_of_each": request.captures.streams,
        },
        "prefix": {
            "cached": request.prefix_caching or not _state_bytes(plan),
            "unit": pool.prefix_unit,
            "smallest_shared": pool.smallest_shared_prefix,
        },
        "state_bytes_of_a_request": _state_bytes(plan),
        "hccl_buffsize": {
            "set_mib": request.hccl_buffer_mib,
            "needed_mib": plan.needed_hccl.mib,
            "how": plan.needed_hccl.how,
        },
        "fits": plan.fits,
        "longest_context": plan.longest_context,
        "refusal": None
        if refused is None
        else {"value": refused.value, "limit": refused.limit, "remedy": refused.remedy},
        "notes": list(notes(plan)),
    }


def show(plan: Plan, console: Console) -> None:
    """Print a plan."""
    console.print(Group(*_parts(plan)), soft_wrap=False)


def _parts(plan: Plan) -> Iterator[RenderableType]:
    request, layout, pool = plan.request, plan.request.layout, plan.pool
    stored = f", {gib(plan.source.stored_bytes)} on disk" if plan.source.stored else ""
    yield (
        f"{escape(str(plan.source.path))}: {parameters(plan.source.spec) / 1e9:.1f} billion "
        f"parameters{stored}, {_short(plan.dtype)}, weights as {plan.weight_format}"
    )
    replicas = "" if layout.redundant is None else f" with {layout.redundant} replicas"
    yield (
        f"{layout.cards} x {request.device}: tensor {layout.tensor}, data {layout.data}, expert "
        f"{layout.expert}{replicas}, context {layout.context}, output projection "
        f"{_projection(plan)}; "
        f"{request.concurrency} request(s) of {plan.max_model_len} tokens\n"
    )
    yield _memory_table(plan)
    for segment in segments(plan):
        if segment.kind == "estimate":
            yield escape(f"  {segment.name}: {segment.how}")
    yield escape(f"  card: {plan.memory_bytes.how}\n")
    yield _cache_table(plan)
    yield _pool_table(plan)
    yield (
        f"\n{plan.num_blocks} blocks of {pool.stride} bytes; {request.load.concurrency} request(s) "
        f"per replica need {pool.blocks_of(request.load, plan.max_model_len)}. vLLM would report a "
        f"maximum concurrency of {plan.max_concurrency:.2f}."
    )
    if _state_bytes(plan):
        yield (
            f"The recurrent states of a request take {_state_bytes(plan) / 1024**2:.2f} MiB of a "
            "card, however long it is, without padding. A state's page is padded to that of "
            f"{pool.prefix_unit} tokens."
        )
    if _state_bytes(plan) and not request.prefix_caching:
        yield (
            "No prefix is reused: with recurrent states vLLM caches prefixes only if asked "
            "(--enable-prefix-caching), in units of a block, with a state more for a request."
        )
    else:
        yield _prefix(plan)
    sizes = request.captures.sizes
    if sizes:
        listed = ", ".join(
            map(str, sizes if len(sizes) <= _FEW else (*sizes[:3], "...", sizes[-1]))
        )
        yield (
            f"{len(sizes)} decode steps are captured as graphs, padded to {listed} tokens; larger "
            "ones and prompts run without."
        )
    for note in notes(plan):
        yield f"[yellow]note[/] {escape(note)}"
    refused = refusal(plan)
    if refused is None:
        yield f"[green]fits[/]; the largest context is {plan.longest_context} tokens"
    else:
        yield f"[red]does not fit[/]: {escape(str(refused))}"


def _memory_table(plan: Plan) -> Table:
    table = _table("Memory of the fullest card", "", "size", "share", "figure")
    kinds = {
        "estimate": "estimated, not measured",
        "reserved": "the rest of the card",
    }
    for segment in segments(plan):
        share = f"{100 * segment.bytes / plan.memory_bytes.bytes:.1f} %"
        table.add_row(segment.name, gib(segment.bytes), share, kinds.get(segment.kind, COMPUTED))
    table.add_row("card", gib(plan.memory_bytes.bytes), "100 %", "see below")
    return table


def _table(title: str, *columns: str) -> Table:
    return Table(*columns, title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)


def _cache_table(plan: Plan) -> Table:
    columns = ("", "ratio", "layers", "block", "a row is", "kept", "one request")
    table = _table("Caches: sizes of blocks in tokens", *columns)
    for use in plan.caches:
        table.add_row(
            use.role.value,
            str(use.compress_ratio),
            str(use.layers),
            str(use.block_tokens),
            _row(use),
            _kept(use),
            f"{use.request_bytes / 1024**2:.2f} MiB",
        )
    return table


def _kept(use: CacheUse) -> str:
    if use.states is not None:
        return f"{use.states} state{'s' if use.states > 1 else ''}"
    return "all" if use.window is None else f"{use.window} tokens"


def _prefix(plan: Plan) -> str:
    pool = plan.pool
    return (
        f"A prefix is reused in units of {pool.prefix_unit} tokens; two prompts must share at "
        f"least {pool.smallest_shared_prefix}."
    )


def _state_bytes(plan: Plan) -> int:
    """Bytes of the recurrent states of a request on one card."""
    return sum(use.request_bytes for use in plan.caches if use.states is not None)


def _row(use: CacheUse) -> str:
    if use.states is not None:
        return f"{use.width} bytes"
    if use.scales is None:
        return f"{use.width} x {_short(use.dtype)}"
    kept = use.scales.rotary or 0
    parts = [f"{use.width - kept} x {_short(use.dtype)}"]
    if kept:
        parts.append(f"{kept} x bfloat16")
    parts.append(f"{use.scales.count} scale{'s' if use.scales.count > 1 else ''}")
    return ", ".join(parts)


def _pool_table(plan: Plan) -> Table:
    columns = ("", "caches", "block", "filled", "padding", "of a request")
    table = _table("Blocks of the pool: every group is as long as the longest", *columns)
    for group in plan.pool.groups:
        table.add_row(
            ", ".join(sorted({cache.kind.role.value for cache in group.caches})),
            str(len(group.caches)),
            str(group.block_tokens),
            f"{group.bytes_used} B",
            f"{100 * plan.pool.padding(group):.0f} %",
            str(group.blocks_at_most(plan.max_model_len, plan.request.load.tokens_in_flight)),
        )
    return table


def _method(plan: Plan) -> str | None:
    if plan.request.draft is not None:
        return plan.request.draft.method
    return "mtp" if plan.request.uses_mtp else None


def _projection(plan: Plan) -> str:
    return "plain" if plan.projection is None else plan.projection.variant.name


def _short(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
