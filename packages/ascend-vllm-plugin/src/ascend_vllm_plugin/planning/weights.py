"""What the weights of a model take on one card, part by part, from the table of its tensors.

Names, shapes and shares come from the table that loads a checkpoint; here they are only counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace

import torch
from ascend_attention.layers.output_projection import ProjectionPart
from ascend_fused_moe.eplb import initial_placement
from ascend_ops_core.checkpoint.table import TensorRule
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.quantized_weights import QuantizationResolver

from ascend_vllm_plugin.planning.bailing import PlannedBailing
from ascend_vllm_plugin.planning.dense import PlannedDense
from ascend_vllm_plugin.planning.models import (
    ModelShard,
    ModelSpec,
    PlannedKimi,
    main_table,
    mtp_table,
    shard_of,
    with_whole_experts,
)
from ascend_vllm_plugin.planning.qwen3_next import check_format
from ascend_vllm_plugin.planning.qwen3_next_config import Qwen3NextSpec
from ascend_vllm_plugin.planning.tensor_sizes import (
    VISION,
    TensorClass,
    WeightFormat,
    stored_bytes,
    tensor_bytes,
    tensor_class,
)

__all__ = [
    "DRAFT",
    "VOCABULARY_PADDING",
    "Layout",
    "WeightFormat",
    "check_layout",
    "draft_bytes",
    "parameters",
    "part_of",
    "weights_by_part",
]

VOCABULARY_PADDING = 64
"""vLLM rounds a vocabulary up to this many rows before it splits it."""

DRAFT = "MTP draft"
_PROJECTION = re.compile(r"\.attn\.wo_[ab]\.weight$")
_MXFP8_BLOCK = 32  # values that share a scale of one byte
_PARTS = (
    (VISION, "vision tower"),
    (
        re.compile(r"^(language_model\.)?(model\.(embed_tokens|word_embeddings)|embed)\."),
        "embedding",
    ),
    (re.compile(r"^(language_model\.)?(lm_)?head\."), "output head"),
    (re.compile(r"(attention|mlp|attn)_res_(norm|proj)\."), "attention residuals"),
    (re.compile(r"attn\.index(er\.|_)"), "indexer"),
    (re.compile(r"attn\.compressor\."), "compressor"),
    (re.compile(r"attn\.|\.attention\."), "attention"),
    (re.compile(r"\.mlp\.shared_expert(_gate)?\."), "shared experts"),
    (re.compile(r"\.(ffn|mlp|block_sparse_moe)\.experts\."), "routed experts"),
    (re.compile(r"\.(ffn|mlp|block_sparse_moe)\.shared_experts\."), "shared experts"),
    (re.compile(r"\.(ffn|mlp|block_sparse_moe)\.gate\."), "router"),
    (re.compile(r"\.routed_expert_(down_proj|norm|up_proj)\."), "projections of experts"),
    (re.compile(r"\.mlp\."), "dense MLP"),
    (re.compile(r""), "norms and hyper-connections"),
)


@dataclass(frozen=True)
class Layout:
    """How a model is spread over cards.

    Attributes:
        tensor: cards that split every layer.
        data: replicas that serve different requests.
        expert: cards that share the experts out among themselves, or 1: then every card of a
            replica holds a slice of every expert.
        context: cards out of those that split a layer that share the caches of a context out among
            themselves (decode context parallelism).
        redundant: replicas of routed experts in each layer, which are balanced by load; None for
            no balancing.
    """

    tensor: int = 1
    data: int = 1
    expert: int = 1
    context: int = 1
    redundant: int | None = None

    def __post_init__(self) -> None:
        for name, value in (
            ("tp", self.tensor),
            ("dp", self.data),
            ("ep", self.expert),
            ("dcp", self.context),
        ):
            if value < 1:
                raise InvalidInputError(f"{name}={value}", "it must be at least 1", "Raise it.")
        if self.tensor % self.context:
            raise InvalidInputError(
                f"dcp={self.context}",
                f"the tp={self.tensor} cards of a replica form groups of so many",
                "Use a divisor of tp.",
            )
        if self.expert not in (1, self.cards):
            raise InvalidInputError(
                f"ep={self.expert}",
                f"vLLM shares experts out over all tp x dp = {self.cards} cards, or not at all",
                f"Use ep=1 or ep={self.cards}.",
            )
        if self.redundant is not None and (self.redundant < 0 or self.expert == 1):
            raise InvalidInputError(
                f"redundant_experts={self.redundant} with ep={self.expert}",
                "cards that share the experts out have at least 0 replicas of them",
                "Give ep = tp x dp, on more than one card, or leave redundant_experts unset.",
            )

    def experts_held(self, experts: int) -> int:
        """Routed experts of a layer on the fullest card, replicas included.

        Raises:
            InvalidInputError: more replicas than cards, each of which holds an expert once, take.
        """
        if self.expert == 1:
            return experts
        return initial_placement(experts, self.expert, self.redundant or 0).capacity

    @property
    def cards(self) -> int:
        """Cards in all."""
        return self.tensor * self.data


def weights_by_part(
    spec: ModelSpec,
    layout: Layout,
    dtype: torch.dtype,
    weight_format: WeightFormat = WeightFormat.MODEL,
    *,
    draft: bool = False,
    draft_owns: Container[str] = (),
    resolver: QuantizationResolver | None = None,
    projection: ProjectionPart | None = None,
    projection_quantised: bool = False,
) -> dict[str, int]:
    """Bytes of the fullest card by part of the model.

    Args:
        spec: the model.
        layout: how it is spread.
        dtype: the model's dtype.
        weight_format: how matrices are stored.
        draft: count the MTP layers, as they are loaded for speculation.
        draft_owns: optional tensors of the draft that the checkpoint has; without them it shares
            the main model's embedding and head.
        resolver: of the checkpoint, for the format ``stored``.
        projection: a card's part of the output projection; that of the unquantised variant for
            such a layout if None.
        projection_quantised: it is in MXFP8.

    Raises:
        InvalidInputError: ``layout.tensor`` does not divide the model.
    """
    shard, held = _shard(spec, layout, projection)
    measure = _Measure(spec, layout, dtype, weight_format, resolver, projection_quantised)

    def main(few: ModelSpec) -> Mapping[str, TensorRule]:
        return _held(few, shard)

    def drafted(few: ModelSpec) -> Mapping[str, TensorRule]:
        rules = mtp_table(few, shard).rules
        return {
            n: r
            for n, r in rules.items()
            if not r.optional or (n in draft_owns and r.filled is not None)
        }

    parts = _total(main, spec, held, part_of, measure)
    if draft:
        parts += _total(drafted, spec, held, lambda name: DRAFT, measure)
    return dict(parts)


def draft_bytes(
    table: Callable[[ModelSpec, ModelShard], Mapping[str, TensorRule]],
    spec: ModelSpec,
    layout: Layout,
    dtype: torch.dtype,
    weight_format: WeightFormat,
    *,
    resolver: QuantizationResolver | None,
    projection: ProjectionPart | None,
    projection_quantised: bool,
) -> int:
    """Bytes on the fullest card of a draft of a model's own kind of layers.

    Args:
        table: its tensors, of a config and a share.
        spec: the model that its layers belong to.
        layout: see :func:`weights_by_part`, as for all that follow.
        dtype: of its matrices, unless they are quantised.
        weight_format: how they are stored.
        resolver: of its checkpoint.
        projection: a card's part of the output projection.
        projection_quantised: it is in MXFP8.
    """
    shard, held = _shard(spec, layout, projection)
    measure = _Measure(spec, layout, dtype, weight_format, resolver, projection_quantised)
    return _total(lambda few: table(few, shard), spec, held, lambda name: DRAFT, measure).total()


@dataclass(frozen=True)
class _Measure:
    """Bytes of a tensor on the fullest card, by its name and its line in the table."""

    spec: ModelSpec
    layout: Layout
    dtype: torch.dtype
    weight_format: WeightFormat
    resolver: QuantizationResolver | None
    projection_quantised: bool

    def __call__(self, name: str, rule: TensorRule) -> int:
        shape = _local_shape(name, rule, self.spec, self.layout)
        if isinstance(self.spec, PlannedDense):
            # vLLM's own models hold vectors in the model's dtype as well.
            return torch.Size(shape).numel() * self.dtype.itemsize
        if self.projection_quantised and _PROJECTION.search(name):
            count = torch.Size(shape).numel()
            return count + count // _MXFP8_BLOCK
        if self.resolver is not None and self.weight_format is WeightFormat.STORED:
            return stored_bytes(name, rule, shape, self.dtype, self.resolver)
        kind = tensor_class(name, rule)
        if kind is TensorClass.LINEAR and isinstance(self.spec, PlannedKimi):
            # Whatever a checkpoint stores, only routed experts stay so.
            kind = TensorClass.PLAIN
        if isinstance(self.spec, Qwen3NextSpec | PlannedBailing):
            # Norms of vLLM's own models have their dtype, and so have Qwen3-Next's routers.
            ling = isinstance(self.spec, PlannedBailing)
            check_format(self.weight_format, "Ling 2.5" if ling else "Qwen3-Next")
            control = ".mlp.gate." in name if ling else name.endswith("A_log")
            kind = TensorClass.CONTROL if control else TensorClass.PLAIN
        return tensor_bytes(kind, shape, self.dtype, self.weight_format)


def check_layout(spec: ModelSpec, layout: Layout) -> None:
    """Refuse cards that cannot share the model, and name how many can.

    Raises:
        InvalidInputError: ``layout.tensor`` does not divide the model.
    """
    _shard(spec, layout)


def parameters(spec: ModelSpec) -> int:
    """Number of weights of the main model, tables of ids left out."""
    shard, held = _shard(spec, Layout())

    def measure(name: str, rule: TensorRule) -> int:
        return torch.Size(rule.shape).numel() if rule.below is None else 0

    totals = _total(lambda few: _held(few, shard), spec, held, part_of, measure)
    return totals.total()


def _held(spec: ModelSpec, shard: ModelShard) -> Mapping[str, TensorRule]:
    """The main model's tensors without those that a checkpoint may have and no card holds."""
    rules = main_table(spec, shard).rules
    return {name: rule for name, rule in rules.items() if not rule.optional}


def _total(
    table: Callable[[ModelSpec], Mapping[str, TensorRule]],
    spec: ModelSpec,
    held: int,
    part: Callable[[str], str],
    measure: Callable[[str, TensorRule], int],
) -> Counter[str]:
    """Sum ``measure`` by part, for ``held`` of the experts.

    Experts are alike and the router grows by one row for each, so that tables of one and of two
    experts tell all; the whole table of a large model has a hundred thousand tensors.
    """
    totals: Counter[str] = Counter()
    for count, sign in ((1, -1), (2, 1)):
        for name, rule in table(replace(spec, n_routed_experts=count)).items():
            size = sign * measure(name, rule)
            if ".experts." in name:
                totals[part(name)] += held * size
            else:
                # first + (experts - 1) * (second - first)
                totals[part(name)] += (spec.n_routed_experts - 1) * size
                totals[part(name)] += 0 if count == 2 else -size
    return totals


def part_of(name: str) -> str:
    """The part of the model to which a tensor of the main table belongs."""
    return next(part for pattern, part in _PARTS if pattern.search(name))


def _shard(
    spec: ModelSpec, layout: Layout, projection: ProjectionPart | None = None
) -> tuple[ModelShard, int]:
    """The share of a card, and the number of experts that it holds."""
    vocabulary = (0, min(spec.vocab_size, _vocabulary_rows(spec, layout)))
    if layout.expert == 1:
        return shard_of(spec, layout.tensor, vocabulary, projection), spec.n_routed_experts
    even = replace(spec, moe_intermediate_size=layout.tensor)
    whole = shard_of(even, layout.tensor, (0, 0), projection)
    inter = spec.moe_intermediate_size
    shared = inter * spec.n_shared_experts
    if shared % layout.tensor:
        raise InvalidInputError(
            f"tp={layout.tensor}",
            f"it must divide the shared experts' {shared} channels",
            "Lower it.",
        )
    shard = with_whole_experts(whole, inter, shared // layout.tensor, vocabulary)
    return shard, layout.experts_held(spec.n_routed_experts)


def _vocabulary_rows(spec: ModelSpec, layout: Layout) -> int:
    padded = _ceil(spec.vocab_size, VOCABULARY_PADDING) * VOCABULARY_PADDING
    return _ceil(padded, layout.tensor)


def _local_shape(name: str, rule: TensorRule, spec: ModelSpec, layout: Layout) -> tuple[int, ...]:
    if rule.param in ("model.embed_tokens.weight", "lm_head.weight"):
        return (_vocabulary_rows(spec, layout), spec.hidden_size)
    shape = list(rule.view or rule.shape)
    for axis, part in enumerate(rule.source):
        shape[axis] = len(range(shape[axis])[part])
    return tuple(shape)


def _ceil(value: int, unit: int) -> int:
    return -(-value // unit)
