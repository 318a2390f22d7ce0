"""What Kimi-K3's DSpark draft takes on a card, from the table that loads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from ascend_attention.caches import CacheKind
from ascend_models_kimi.kimi_k3.dspark_config import K3DSparkSpec
from ascend_models_kimi.kimi_k3.dspark_weights import dspark_table
from ascend_models_kimi.kimi_linear.sharding import Shard
from ascend_ops_core.checkpoint.headers import read_headers
from ascend_ops_core.errors import InvalidInputError

from ascend_vllm_plugin.planning.drafts import (
    DraftTarget,
    PlannedDraft,
    draft_buffers,
    draft_step,
    read_draft,
)
from ascend_vllm_plugin.planning.estimates import Step
from ascend_vllm_plugin.planning.kimi import PlannedKimi

ARCHITECTURE = "K3DSparkModel"
_FLOAT32 = 4


def k3_draft_problems(path: Path, spec: PlannedKimi) -> list[str]:
    """What keeps a draft's checkpoint from being served, told from its config and its headers.

    Args:
        path: directory of its checkpoint.
        spec: the target.
    """
    try:
        drafted = _spec_of(path, spec)
        shard = Shard.of(drafted.text, 1, 0, (0, spec.vocab_size))
    except InvalidInputError as error:
        return [str(error)]
    if not path.is_dir():
        return [f"{path}: name the directory of the draft's checkpoint"]
    return dspark_table(drafted, shard).problems(read_headers(path))


def plan_k3_draft(
    path: Path, spec: PlannedKimi, latent: CacheKind, target: DraftTarget, step: Step
) -> PlannedDraft:
    """Count a draft that shares the target's embedding and head.

    Args:
        path: directory of its checkpoint, or its config.json.
        spec: the target.
        latent: the cache of one of the target's layers of latent attention; the draft's are alike.
        target: the same, in the terms of all drafts.
        step: the largest step.

    Raises:
        InvalidInputError: another draft, or one that does not belong to the target.
    """
    drafted = _spec_of(path, spec)
    shard = Shard.of(drafted.text, target.ranks, 0, (0, target.vocab_size))
    weights = 0
    for rule in dspark_table(drafted, shard).rules.values():
        shape = list(rule.view or rule.shape)
        for axis, part in enumerate(rule.source):
            shape[axis] = len(range(shape[axis])[part])
        # Norms are float32.
        itemsize = _FLOAT32 if len(shape) == 1 else target.dtype.itemsize
        weights += torch.Size(shape).numel() * itemsize
    table = target.max_model_len * drafted.text.qk_rope_head_dim * _FLOAT32
    return PlannedDraft(
        weights,
        (latent,) * drafted.text.num_hidden_layers,
        draft_buffers(target, step, target.hidden_size, table, flags=step.speculative_tokens > 1),
        draft_step(target, step, len(drafted.target_layers)),
        True,
    )


def _spec_of(path: Path, spec: PlannedKimi) -> K3DSparkSpec:
    """A draft's config, checked against the target's."""
    config: Mapping[str, Any] = read_draft(path)[0]
    architecture = (config.get("architectures") or ["none"])[0]
    if architecture != ARCHITECTURE:
        raise InvalidInputError(
            f"a draft {architecture} for Kimi",
            f"planned is {ARCHITECTURE}",
            "Name another draft.",
        )
    return K3DSparkSpec.from_config(config, spec.text)
