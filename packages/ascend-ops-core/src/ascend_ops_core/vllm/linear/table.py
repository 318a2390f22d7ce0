"""Which layer is computed by which parallel form, chosen by its name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ascend_ops_core.communication import Group
from ascend_ops_core.vllm.linear.layout import ParallelLayout, parallel_layout
from ascend_ops_core.vllm.linear.parallel_ops import (
    CustomColumnParallelOp,
    CustomLinearOp,
    CustomReplicatedOp,
    CustomRowParallelOp,
    DSV4OProjColumnParallelOp,
    DSV4OProjRowParallelOp,
    MLPColumnParallelOp,
    MLPRowParallelOp,
    OProjRowParallelOp,
    ShardedCPColumnParallelOp,
    SharedExpertColumnParallelOp,
    SharedExpertRowParallelOp,
)


@dataclass(frozen=True)
class Rule:
    """One line of the table.

    Attributes:
        kind: ``"column"`` or ``"row"``.
        pattern: searched in the layer's name.
        op: how such a layer is computed.
        wanted: whether the layout asks for it.
        group: the ranks that share the layer; None for the tensor-parallel group.
    """

    kind: str
    pattern: str
    op: type[CustomLinearOp]
    wanted: Callable[[ParallelLayout], bool]
    group: Callable[[ParallelLayout], Group | None] = lambda layout: None


_SHARED_EXPERT = r"(^|\.)shared_experts?(\.|$)"

RULES: tuple[Rule, ...] = (
    Rule(
        "column",
        _SHARED_EXPERT + r".*(gate_up_proj|gate_proj|up_proj)$",
        SharedExpertColumnParallelOp,
        lambda layout: layout.shared_expert_dp,
    ),
    Rule(
        "row",
        _SHARED_EXPERT + r".*down_proj$",
        SharedExpertRowParallelOp,
        lambda layout: layout.shared_expert_dp,
    ),
    Rule(
        "column",
        r"\.mlp\.(gate_up_proj|gate_proj|up_proj)$",
        MLPColumnParallelOp,
        lambda layout: layout.mlp is not None,
        lambda layout: layout.mlp,
    ),
    Rule(
        "row",
        r"\.mlp\.down_proj$",
        MLPRowParallelOp,
        lambda layout: layout.mlp is not None,
        lambda layout: layout.mlp,
    ),
    Rule(
        "column",
        r"\.wo_a$",
        DSV4OProjColumnParallelOp,
        lambda layout: layout.dsv4_o_proj is not None,
        lambda layout: layout.dsv4_o_proj,
    ),
    Rule(
        "row",
        r"\.wo_b$",
        DSV4OProjRowParallelOp,
        lambda layout: layout.dsv4_o_proj is not None,
        lambda layout: layout.dsv4_o_proj,
    ),
    Rule(
        "row",
        r"\.(o_proj|out_proj)$",
        OProjRowParallelOp,
        lambda layout: layout.o_proj is not None,
        lambda layout: layout.o_proj,
    ),
    Rule(
        "column",
        r"\.(q_proj|q_b_proj|wq_b|kv_b_proj|qkv_proj)$",
        ShardedCPColumnParallelOp,
        lambda layout: layout.context_parallel,
    ),
)
"""The first line that fits decides; a layer that none fits is computed as vLLM does."""


def get_parallel_op(
    kind: str, prefix: str, layer: Any, *, disable_tp: bool = False
) -> CustomLinearOp | None:
    """The parallel form of a layer, or None for vLLM's.

    Args:
        kind: ``"column"`` or ``"row"``.
        prefix: the layer's name in the checkpoint.
        layer: the layer.
        disable_tp: the model wants the whole weight on every rank, whatever the table says.
    """
    if disable_tp:
        return None
    layout = parallel_layout()
    for rule in RULES:
        if rule.kind == kind and rule.wanted(layout) and re.search(rule.pattern, prefix):
            return rule.op(layer, rule.group(layout))
    return None


def get_replicated_op(layer: Any) -> CustomReplicatedOp:
    """The form of a layer whose weight is whole on every rank."""
    return CustomReplicatedOp(layer)


def plain_op(kind: str, layer: Any, group: Group | None = None) -> CustomLinearOp:
    """The form that vLLM's layers have, as an object.

    Args:
        kind: ``"column"`` or ``"row"``.
        layer: the layer.
        group: the ranks; None for vLLM's tensor-parallel group.
    """
    return {"column": CustomColumnParallelOp, "row": CustomRowParallelOp}[kind](layer, group)


def is_shared_expert_layer(prefix: str) -> bool:
    """Whether a layer belongs to the experts that every token visits."""
    return re.search(_SHARED_EXPERT, prefix) is not None


def is_moe_layer(prefix: str, config: Any) -> bool:
    """Whether a decoder layer routes tokens to experts.

    Args:
        prefix: any name below the decoder layer, with ``layers.<number>`` in it.
        config: the model's Hugging Face config. Read are the number of experts
            (``n_routed_experts``, ``num_experts``, ``num_local_experts``), and where layers differ
            ``first_k_dense_replace`` with ``moe_layer_freq`` (DeepSeek), ``mlp_only_layers`` with
            ``decoder_sparse_step`` (Qwen).
    """
    found = re.search(r"(?:^|\.)layers\.(\d+)(?:\.|$)", prefix)
    counts = ("n_routed_experts", "num_experts", "num_local_experts")
    if found is None or not any(getattr(config, name, None) for name in counts):
        return False
    index = int(found[1])
    frequency = getattr(config, "moe_layer_freq", None) or 1
    if isinstance(frequency, (list, tuple)):
        return bool(frequency[index])
    step = getattr(config, "decoder_sparse_step", None) or 1
    return (
        index >= (getattr(config, "first_k_dense_replace", None) or 0)
        and index % frequency == 0
        and index not in (getattr(config, "mlp_only_layers", None) or ())
        and (index + 1) % step == 0
    )
