"""What the steps of an engine take on a card besides weights and caches.

Counted from the tensors that the model, vLLM's runner and its sampler make; the engine tests
compare the figures with what the simulated device allocates. Workspaces inside operators,
fragmentation and the CANN context are known to nobody without hardware, and are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ascend_attention.caches import CacheRole
from ascend_attention.step_bytes import (
    IndexerSize,
    StepSize,
    block_table_bytes,
    context_bytes,
    latent_layer_bytes,
    layer_bytes,
    metadata_bytes,
)
from ascend_models_deepseek.deepseek_v3.config import DeepseekV3Spec
from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_models_deepseek.deepseek_v32.config import DeepseekV32Spec
from ascend_ops_core.devices import DeviceFacts

from ascend_vllm_plugin.planning.bailing import PlannedBailing
from ascend_vllm_plugin.planning.block_pool import CacheGroup
from ascend_vllm_plugin.planning.captures import CapturePlan
from ascend_vllm_plugin.planning.dense import PlannedDense
from ascend_vllm_plugin.planning.estimates import MIB, Estimate, Step
from ascend_vllm_plugin.planning.kimi import PlannedKimi
from ascend_vllm_plugin.planning.minimax import PlannedMiniMaxM3
from ascend_vllm_plugin.planning.models import ModelSpec
from ascend_vllm_plugin.planning.qwen3_next import token_bytes
from ascend_vllm_plugin.planning.qwen3_next_config import Qwen3NextSpec
from ascend_vllm_plugin.planning.weights import Layout

_FLOAT32 = 4
_INDEX = 8
_LEFT_OUT = "workspaces of operators, fragmentation and the CANN context are not included"


@dataclass(frozen=True)
class Shape:
    """What the sizes of a step's tensors depend on.

    Attributes:
        spec: the model.
        layout: how it is spread.
        itemsize: bytes of a value of the model's dtype.
        draft: whether MTP drafts.
    """

    spec: ModelSpec
    layout: Layout
    itemsize: int
    draft: bool = False

    @property
    def hidden(self) -> int:
        """Bytes of a token's hidden state."""
        return self.spec.hidden_size * self.itemsize

    @property
    def streams(self) -> int:
        """Bytes of a token's residual streams."""
        return self.spec.hc_mult * self.hidden if isinstance(self.spec, DeepseekV4Spec) else 0


def activations(shape: Shape, step: Step) -> Estimate:
    """Tensors that live at once at the widest point of a step.

    Args:
        shape: the model.
        step: the largest step.
    """
    largest = max(step.tokens * _token_bytes(shape), _sampling(shape, step))
    return Estimate(
        largest,
        f"tensors that live at once at the widest point of a step of {step.tokens} tokens: in "
        f"attention, in the experts (balanced), or while sampling; {_LEFT_OUT}; not run on "
        "hardware",
    )


def buffers(shape: Shape, step: Step, *, graphs: bool, exchanged: int = 0) -> Estimate:
    """What the runner and its draft keep for every token of the largest step.

    Args:
        shape: the model.
        step: the largest step.
        graphs: on a device that has graphs the streams that MTP continues have a fixed place.
        exchanged: bytes of the buffers through which output projections exchange rows.
    """
    # Ids, positions, requests, places, slots and flags, beside embeddings.
    token = shape.hidden + 2 * _FLOAT32 + 4 * _INDEX - 3
    if shape.draft:
        token += shape.streams + shape.hidden + 2 * _FLOAT32 + 2 * _INDEX
        token += shape.streams if graphs else 0
    how = f"tensors of vLLM's runner for a step of {step.tokens} tokens"
    if exchanged:
        how += f", and {exchanged} bytes through which output projections exchange rows"
    return Estimate(step.tokens * token + exchanged, how)


def graphs(
    shape: Shape,
    captures: CapturePlan,
    groups: Iterable[CacheGroup],
    length: int,
    facts: DeviceFacts | None,
) -> Estimate:
    """Memory that vLLM sets aside for captured graphs.

    Args:
        shape: the model.
        captures: the sizes that are captured.
        groups: the groups of caches.
        length: tokens of a request; a graph reads as if every request were that long.
        facts: the device family, or None for a CPU.
    """
    if not captures.sizes:
        return Estimate(0, "no graphs are captured")
    tokens, others = captures.sizes[-1], len(captures.sizes) - 1
    # Every token may complete an entry, as far as the host knows.
    step = StepSize(tokens, tokens, length)
    attended = _attention_bytes(shape, groups, step, facts, prompts=False)
    one = tokens * _token_bytes(shape) + attended
    return Estimate(
        2 * one + others * MIB,
        f"{others + 1} graphs of {captures.sizes[0]} to {tokens} tokens in one pool: a warm-up and "
        "the largest graph's activations and attention, and 1 MiB for each other one, as vLLM sets "
        "aside; what the driver keeps for a graph is not known; not run on hardware",
    )


def block_tables(groups: Iterable[CacheGroup], step: StepSize) -> Estimate:
    """Block tables and slots of every group of caches, which vLLM makes after the caches.

    Args:
        groups: the groups.
        step: the largest step.
    """
    return Estimate(
        block_table_bytes((_table_tokens(group, step.length) for group in groups), step),
        f"block tables of {step.sequences} requests of {step.length} tokens, which the worker sets "
        "aside, since vLLM makes them after the caches",
    )


def _table_tokens(group: CacheGroup, length: int) -> int:
    """Tokens for which the group's block table has one column, of requests of ``length``."""
    states = group.states
    alone = states is not None and not states.prefix_caching
    return length if alone else group.block_tokens


def attention(
    shape: Shape, groups: Iterable[CacheGroup], step: StepSize, facts: DeviceFacts | None
) -> Estimate:
    """What attention keeps and works on in the largest step, at the longest context.

    Args:
        shape: the model.
        groups: the groups of caches.
        step: the largest step.
        facts: the device family; None for a CPU, whose kernels keep no copies of rows.
    """
    return Estimate(
        _attention_bytes(shape, groups, step, facts),
        f"indices, scores and gathered rows of {step.tokens} tokens at a context of {step.length}, "
        "which the worker sets aside, since vLLM measures a step without attention; not run on "
        "hardware",
    )


def _attention_bytes(
    shape: Shape,
    groups: Iterable[CacheGroup],
    step: StepSize,
    facts: DeviceFacts | None,
    *,
    prompts: bool = True,
) -> int:
    spec = shape.spec
    paged = [[one.kind for one in group.caches] for group in groups if group.states is None]
    total = metadata_bytes(paged, step)
    if isinstance(spec, DeepseekV3Spec):
        exchanged = context_bytes(
            step,
            ranks=shape.layout.context,
            heads=spec.num_attention_heads // shape.layout.tensor,
            latent=spec.kv_lora_rank,
            row=spec.kv_lora_rank + spec.qk_rope_head_dim,
            itemsize=shape.itemsize,
            row_bytes=max(
                kind.row_bytes for kinds in paged for kind in kinds if kind.role is CacheRole.LATENT
            ),
            prompts=prompts,
        )
        working = 0
        if facts is not None:
            indexer = None
            if isinstance(spec, DeepseekV32Spec):
                indexer = IndexerSize(spec.index_n_heads, spec.index_head_dim, spec.index_topk)
            working = latent_layer_bytes(
                facts,
                step,
                heads=spec.num_attention_heads // shape.layout.tensor,
                latent=spec.kv_lora_rank,
                rope=spec.qk_rope_head_dim,
                value=spec.v_head_dim,
                itemsize=shape.itemsize,
                indexer=indexer,
            )
        # Layers need one or the other first; the larger is set aside.
        return total + max(working, exchanged)
    if isinstance(spec, PlannedDense):
        return 0
    if facts is None or isinstance(spec, Qwen3NextSpec):
        return total
    if isinstance(spec, PlannedKimi | PlannedBailing):
        text = spec.text
        return total + latent_layer_bytes(
            facts,
            step,
            heads=text.num_attention_heads // shape.layout.tensor,
            latent=text.kv_lora_rank,
            rope=text.qk_rope_head_dim,
            value=text.v_head_dim,
            itemsize=shape.itemsize,
            indexer=None,
        )
    if isinstance(spec, PlannedMiniMaxM3):
        return total + spec.attention_bytes(step.tokens, step.length, shape.layout.tensor)
    return total + max(
        layer_bytes(
            facts,
            step,
            ratio=ratio,
            heads=spec.num_attention_heads // shape.layout.tensor,
            width=spec.head_dim,
            window=spec.sliding_window,
            top_k=spec.index_topk,
            itemsize=shape.itemsize,
        )
        for ratio in {spec.compress_ratio(layer) for layer in range(spec.num_hidden_layers)}
    )


def _token_bytes(shape: Shape) -> int:
    """Bytes per token at the widest point of a layer."""
    spec, item = shape.spec, shape.itemsize
    heads = spec.num_attention_heads // shape.layout.tensor
    if isinstance(spec, DeepseekV3Spec):
        return _latent_token_bytes(shape, spec, heads)
    if isinstance(spec, PlannedDense):
        return spec.token_bytes(shape.layout.tensor, shape.hidden, item)
    if isinstance(spec, PlannedMiniMaxM3 | PlannedKimi | PlannedBailing | Qwen3NextSpec):
        if isinstance(spec, Qwen3NextSpec):
            widest = token_bytes(spec, shape.layout.tensor, shape.hidden, item)
        else:
            widest = spec.token_bytes(shape.layout.tensor, shape.hidden, item)
        # The draft keeps what it was given beside what it made of it.
        return max(widest, _expert_bytes(shape)) + (3 * shape.hidden if shape.draft else 0)
    groups = max(1, spec.o_groups // shape.layout.tensor)
    # Plans of the hyper-connections and the rotations, both float32.
    small = _FLOAT32 * (spec.hc_mult * (1 + spec.hc_mult) + 2 * spec.rope_head_dim)
    attention = (
        shape.streams
        + 3 * shape.hidden
        + 3 * heads * spec.head_dim * item
        + (spec.q_lora_rank + spec.head_dim + 2 * groups * spec.o_lora_rank) * item
    )
    widest = max(attention, _expert_bytes(shape)) + small
    if shape.draft:
        # The draft keeps what it was given beside what it made of it.
        widest += 2 * (shape.streams + shape.hidden)
    return widest


def _latent_token_bytes(shape: Shape, spec: DeepseekV3Spec, heads: int) -> int:
    """The same with latent attention: queries before and after the rotation, and values. What
    attention works on between them is set aside apart, since vLLM measures a step without it."""
    item = shape.itemsize
    head = 2 * spec.qk_head_dim + spec.v_head_dim
    down = (spec.q_lora_rank or 0) + spec.kv_lora_rank + spec.qk_rope_head_dim
    attention = 3 * shape.hidden + (heads * head + 2 * down) * item
    dense = 2 * shape.hidden + 3 * spec.intermediate_size // shape.layout.tensor * item
    widest = max(attention, dense, _expert_bytes(shape)) + _FLOAT32 * 2 * spec.qk_rope_head_dim
    # The draft keeps what it was given beside what it made of it.
    return widest + (3 * shape.hidden if shape.draft else 0)


def _expert_bytes(shape: Shape) -> int:
    """With torch_npu's grouped products; what runs elsewhere takes less."""
    spec, layout = shape.spec, shape.layout
    # Each card of a replica sees all of its tokens; shared-out experts receive their share.
    whole = layout.expert == 1
    inter = spec.moe_intermediate_size // (layout.tensor if whole else 1)
    chosen = spec.num_experts_per_tok
    if not whole:
        chosen = -(-chosen * layout.data // layout.expert)
    width = shape.hidden
    if isinstance(spec, PlannedKimi):
        width = spec.expert_hidden_size * shape.itemsize
    rows = chosen * (2 * width + inter * shape.itemsize)
    routing = spec.num_experts_per_tok * 4 * _FLOAT32
    summed = shape.hidden + 2 * spec.hidden_size * _FLOAT32
    return 2 * (shape.streams + shape.hidden) + rows + routing + summed


def _sampling(shape: Shape, step: Step) -> int:
    """Logits, their sorted copy with its order, two float32 copies and two masks."""
    value = shape.itemsize + 3 * _FLOAT32 + _INDEX + 2
    # In float32 the logits are not copied before they are sampled from.
    value -= _FLOAT32 if shape.itemsize == _FLOAT32 else 0
    return min(step.sequences, step.tokens) * shape.spec.vocab_size * value
