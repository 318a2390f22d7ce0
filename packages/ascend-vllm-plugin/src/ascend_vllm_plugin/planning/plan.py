"""The memory plan of one card: what goes where, whether it fits, and what to change if not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from ascend_attention.caches import default_block_tokens
from ascend_attention.step_bytes import StepSize
from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_ops_core.devices import facts_of
from ascend_ops_core.errors import InvalidInputError

from ascend_vllm_plugin.planning import estimates, step_memory
from ascend_vllm_plugin.planning.balancing import balancing, check_balancing
from ascend_vllm_plugin.planning.block_pool import BlockPool, LayerCache, caches_of, pool_of
from ascend_vllm_plugin.planning.cache_use import CacheUse, uses_of
from ascend_vllm_plugin.planning.dense import PlannedDense
from ascend_vllm_plugin.planning.drafts import DraftTarget, PlannedDraft, plan_draft
from ascend_vllm_plugin.planning.estimates import Estimate
from ascend_vllm_plugin.planning.kimi import PlannedKimi
from ascend_vllm_plugin.planning.kimi_draft import plan_k3_draft
from ascend_vllm_plugin.planning.models import (
    ModelSpec,
    check_block_size,
    draft_key,
    gives_hidden_states,
    has_int8_latents,
    rotary_bytes,
    shares_contexts,
)
from ascend_vllm_plugin.planning.projection import PlannedProjection, planned_projection
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.source import ModelSource, dtype_of, weight_format_of
from ascend_vllm_plugin.planning.states import StatePages
from ascend_vllm_plugin.planning.step_memory import Shape
from ascend_vllm_plugin.planning.v4_draft import plan_v4_draft
from ascend_vllm_plugin.planning.weights import (
    Layout,
    WeightFormat,
    check_layout,
    weights_by_part,
)

_GIB = 1024**3


@dataclass(frozen=True)
class Plan:
    """Where the memory of the fullest card goes.

    Attributes:
        source: the model.
        request: what was asked for.
        max_model_len: tokens of a request.
        dtype: the model's dtype.
        weight_format: how matrices are stored.
        memory_bytes: memory of the card, and where that figure is from.
        weights: bytes by part.
        rotary_bytes: tables of cos and sin.
        activations: estimate.
        buffers: what the runner keeps for the largest step.
        graphs: estimate.
        hccl: estimate.
        drafting: what a draft with a checkpoint of its own, or none, keeps and works on.
        balancing: of experts by load.
        block_tables: made after the caches.
        attention: of the largest step, which vLLM does not measure.
        needed_hccl: buffer that the layout asks for.
        caches: the kinds of cache.
        pool: vLLM's pool of blocks.
        projection: of attention's output, or None for a model whose projection has no variants.
        cache_bytes: memory of the caches.
    """

    source: ModelSource
    request: PlanRequest
    max_model_len: int
    dtype: torch.dtype
    weight_format: WeightFormat
    memory_bytes: Estimate
    weights: dict[str, int]
    rotary_bytes: int
    activations: Estimate
    buffers: Estimate
    graphs: Estimate
    hccl: Estimate
    drafting: Estimate
    balancing: Estimate
    block_tables: Estimate
    attention: Estimate
    needed_hccl: Estimate
    caches: tuple[CacheUse, ...]
    pool: BlockPool
    projection: PlannedProjection | None
    cache_bytes: int

    @property
    def budget(self) -> int:
        """Bytes that vLLM may use."""
        return int(self.memory_bytes.bytes * self.request.gpu_memory_utilization)

    @property
    def fixed_bytes(self) -> int:
        """Everything but the caches."""
        others = (
            self.activations,
            self.buffers,
            self.graphs,
            self.hccl,
            self.drafting,
            self.balancing,
        )
        fixed = sum(self.weights.values()) + self.rotary_bytes
        fixed += sum(part.bytes for part in others)
        return fixed + self.block_tables.bytes + self.attention.bytes

    @property
    def num_blocks(self) -> int:
        """Blocks that vLLM makes."""
        return self.pool.num_blocks(self.cache_bytes)

    @property
    def fits(self) -> bool:
        """Whether the engine starts and holds what was asked for."""
        within = self.fixed_bytes + self.cache_bytes <= self.budget
        return within and self.pool.fits(self.cache_bytes, self.request.load, self.max_model_len)

    @property
    def max_concurrency(self) -> float:
        """Requests of full length at once in one replica, as vLLM reports at start."""
        needed = self.pool.blocks_per_request(
            self.max_model_len, self.request.load.tokens_in_flight
        )
        return self.num_blocks / needed

    @property
    def longest_context(self) -> int:
        """Largest context that fits with this concurrency, within what the model was made for."""
        limit, load = self.source.spec.max_position_embeddings, self.request.load
        draft = self.request.uses_mtp
        # What shrinks with the context leaves that much more for the caches.
        parts = self.graphs, self.block_tables, self.attention
        growing = self.rotary_bytes + sum(part.bytes for part in parts)
        spare = self.budget - (self.fixed_bytes - growing)
        given = self.request.kv_cache_memory_bytes
        low, high = 0, limit
        while low < high:
            length = (low + high + 1) // 2
            left = spare - rotary_bytes(self.source.spec, length, draft=draft, dtype=self.dtype)
            left -= sum(part.bytes for part in self._of_context(length))
            memory = left if given is None else given
            if memory <= left and self.pool.fits(memory, load, length):
                low = length
            else:
                high = length - 1
        return low

    def _of_context(self, length: int) -> tuple[Estimate, Estimate, Estimate]:
        draft = self.request.uses_mtp
        shape = Shape(self.source.spec, self.request.layout, self.dtype.itemsize, draft)
        return _of_context(shape, self.pool, self.request, length)


_AS_DESCRIBED = ("auto", WeightFormat.STORED)


def make_plan(source: ModelSource, request: PlanRequest) -> Plan:
    """Plan the memory of the fullest card.

    Raises:
        InvalidInputError: a setting that the model, the device or the layout refuses. A plan that
            does not fit is no error: see :func:`~ascend_vllm_plugin.planning.advice.refusal`.
    """
    spec = source.spec
    draft = request.uses_mtp
    if draft and not spec.num_mtp_layers:
        raise InvalidInputError(
            f"speculative_tokens={request.speculative_tokens}",
            f"the model's config has {draft_key(spec)}=0",
            "Plan without speculation, or with another method (--speculative-config).",
        )
    length = request.max_model_len or spec.max_position_embeddings
    if length > spec.max_position_embeddings:
        raise InvalidInputError(
            f"max_model_len={length}",
            f"the model ends at max_position_embeddings={spec.max_position_embeddings}",
            f"Use at most {spec.max_position_embeddings}.",
        )
    check_block_size(spec, request.device, request.block_size)
    resolver = source.resolver if request.weight_format in _AS_DESCRIBED else None
    weight_format = weight_format_of(source.config, request.weight_format, resolver)
    dtype = dtype_of(source.config, request.dtype, weight_format)
    layout, step = request.layout, request.step
    # Before caches and projection are chosen, since its error names the numbers of cards that
    # would do.
    _check_dense(spec, layout, weight_format)
    check_layout(spec, layout)
    caches = caches_of(
        spec,
        dtype=dtype,
        device=request.device,
        block_tokens=request.block_size,
        draft=draft,
        keep_dtype=request.cache_dtype == "model",
        int8_latents=resolver is not None
        and has_int8_latents(spec, resolver.cache, request.device, request.cache_dtype),
        ranks=request.layout.tensor,
        states=request.states,
    )
    _check_kv_dtype(request, caches)
    check_balancing(spec, layout)
    projection = planned_projection(
        spec, layout, request.device, dtype, request.o_proj, request.o_proj_tensor_parallel_size
    )
    drafted = _drafted(source, request, dtype, length, projection)
    caches += [
        LayerCache(spec.num_hidden_layers + i, kind) for i, kind in enumerate(drafted.caches)
    ]
    _check_context(spec, layout)
    shape = Shape(spec, layout, dtype.itemsize, draft)
    pool = pool_of(caches, draft=draft or drafted.eagle, context_ranks=layout.context)
    graphs, tables, attention = _of_context(shape, pool, request, length)
    weights = weights_by_part(
        spec,
        layout,
        dtype,
        weight_format,
        draft=draft,
        draft_owns=source.stored,
        resolver=resolver,
        projection=None if projection is None else projection.part,
        projection_quantised=projection is not None and projection.variant.quantised,
    )
    if drafted.weights:
        weights["draft"] = drafted.weights
    activations = step_memory.activations(shape, step)
    plan = Plan(
        source=source,
        request=request,
        max_model_len=length,
        dtype=dtype,
        weight_format=weight_format,
        memory_bytes=_memory(request),
        weights=weights,
        rotary_bytes=rotary_bytes(spec, length, draft=draft, dtype=dtype),
        activations=activations,
        buffers=step_memory.buffers(
            shape,
            step,
            graphs=request.device != "cpu",
            exchanged=0
            if projection is None
            else projection.buffer_bytes(request.graph_tokens, dtype.itemsize),
        ),
        graphs=graphs,
        hccl=_hccl(request, projection.ranks if projection and projection.own_group else 1),
        drafting=drafted.estimate,
        balancing=balancing(
            spec, layout, weights.get("routed experts", 0), activations.bytes, draft=draft
        ),
        block_tables=tables,
        attention=attention,
        needed_hccl=_needed_hccl(source, request, dtype),
        caches=tuple(uses_of(caches, length, request.load, layout.context)),
        pool=pool,
        projection=projection,
        cache_bytes=0,
    )
    given = request.kv_cache_memory_bytes
    left = max(plan.budget - plan.fixed_bytes, 0)
    return replace(plan, cache_bytes=left if given is None else given)


def _drafted(
    source: ModelSource,
    request: PlanRequest,
    dtype: torch.dtype,
    length: int,
    projection: PlannedProjection | None,
) -> PlannedDraft:
    """What other ways of drafting than the model's own take; nothing without them."""
    spec = source.spec
    if request.draft is None:
        return PlannedDraft()
    if request.draft.reads_hidden_states and not gives_hidden_states(spec):
        raise InvalidInputError(
            f"method {request.draft.method!r}",
            "drafts that read hidden states between layers are planned for Llama, Qwen3, "
            "MiniMax-M3, Kimi and DeepSeek-V4",
            "Plan with mtp, medusa, ngram or suffix.",
        )
    target = DraftTarget(
        hidden_size=spec.hidden_size,
        vocab_size=spec.vocab_size,
        max_model_len=length,
        dtype=dtype,
        ranks=request.layout.tensor,
        block_tokens=request.block_size,
    )
    if isinstance(spec, DeepseekV4Spec) and request.draft.reads_hidden_states:
        if request.draft.method == "dspark":
            return plan_v4_draft(source, request, target, projection)
        # Keys and values lie in the blocks of its compressed rows.
        blocks = request.block_size or default_block_tokens(request.device)
        target = replace(target, block_tokens=blocks)
    if isinstance(spec, PlannedKimi) and request.draft.reads_hidden_states:
        model = request.draft.own_model()
        (latent,) = spec.caches(
            spec.num_hidden_layers,
            dtype=dtype,
            device=request.device,
            block_tokens=request.block_size,
            ranks=request.layout.tensor,
            states=request.states,
        )
        return plan_k3_draft(model, spec, latent, target, request.step)
    return plan_draft(request.draft, target, request.step)


def _of_context(
    shape: Shape, pool: BlockPool, request: PlanRequest, length: int
) -> tuple[Estimate, Estimate, Estimate]:
    """Graphs, block tables, and what attention takes, at a context of ``length`` tokens."""
    size = StepSize(request.step.tokens, request.step.sequences, length)
    facts = None if request.device == "cpu" else facts_of(request.device)
    return (
        step_memory.graphs(shape, request.captures, pool.groups, length, facts),
        step_memory.block_tables(pool.groups, size),
        step_memory.attention(shape, pool.groups, size, facts),
    )


def gib(size: int) -> str:
    """A size for people."""
    return f"{size / _GIB:.2f} GiB"


def _check_dense(spec: ModelSpec, layout: Layout, weight_format: WeightFormat) -> None:
    if layout.expert > 1 and not spec.n_routed_experts:
        raise InvalidInputError(
            f"ep={layout.expert}", "the model has no routed experts", "Use ep=1."
        )
    if isinstance(spec, PlannedDense) and weight_format is not WeightFormat.MODEL:
        raise InvalidInputError(
            f"weight format {weight_format.value!r}",
            "dense models are planned in the model's dtype",
            "Leave --weight-format at auto.",
        )


def _check_context(spec: ModelSpec, layout: Layout) -> None:
    if layout.context > 1 and not shares_contexts(spec):
        raise InvalidInputError(
            f"dcp={layout.context}",
            "DeepSeek-V4's compressed caches and windows lie whole on every card, of MiniMax-M3 "
            "ranks share the scores of blocks, not the caches, recurrent states have no tokens to "
            "be shared out by, and of dense models ranks share the heads",
            "Plan without it.",
        )


def _memory(request: PlanRequest) -> Estimate:
    if request.memory_bytes is not None:
        return Estimate(request.memory_bytes, "as given")
    if request.device == "cpu":
        raise InvalidInputError(
            "device 'cpu' without a memory size",
            "the memory of a CPU host is not in any table",
            "Give --memory-gib.",
        )
    figure = facts_of(request.device).figure("hbm_bytes")
    if figure.value is None:
        raise InvalidInputError(
            f"device {request.device!r} without a memory size", figure.source, "Give --memory-gib."
        )
    return Estimate(figure.value, figure.source)


def _hccl(request: PlanRequest, projection_ranks: int) -> Estimate:
    if request.device == "cpu":
        return Estimate(0, "gloo on a CPU keeps no buffers")
    return estimates.hccl(
        request.layout, request.hccl_buffer_mib, projection_ranks=projection_ranks
    )


def _needed_hccl(source: ModelSource, request: PlanRequest, dtype: torch.dtype) -> Estimate:
    if request.device == "cpu":
        return Estimate(0, "a CPU has no HCCL")
    return estimates.needed_hccl(source.spec, request.layout, dtype.itemsize, request.step)


def _check_kv_dtype(request: PlanRequest, caches: Sequence[LayerCache]) -> None:
    rows = (one.kind for one in caches if not isinstance(one.kind, StatePages))
    kept = str(next(rows).dtype).removeprefix("torch.")
    if request.kv_dtype not in ("auto", kept):
        raise InvalidInputError(
            f"kv_dtype={request.kv_dtype!r}",
            f"device {request.device} keeps key-value rows in {kept} with "
            f"cache_dtype={request.cache_dtype}",
            "Leave it at auto.",
        )
