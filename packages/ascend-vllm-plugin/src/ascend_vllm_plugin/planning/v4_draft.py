"""What DeepSeek-V4's DSpark draft takes on a card, from the table that loads it.

It lies under ``mtp.`` in the target's checkpoint, or in one of its own.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

from ascend_fused_moe.quantized_rules import WeightForms
from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_models_deepseek.deepseek_v4.dspark_config import DSparkSpec
from ascend_models_deepseek.deepseek_v4.dspark_weights import CONFIDENCE, dspark_table
from ascend_models_deepseek.deepseek_v4.sharding import Shard
from ascend_ops_core.checkpoint.table import TensorRule
from ascend_ops_core.errors import InvalidInputError

from ascend_vllm_plugin.planning.drafts import (
    DraftTarget,
    PlannedDraft,
    Speculation,
    draft_buffers,
    draft_step,
)
from ascend_vllm_plugin.planning.models import (
    ModelShard,
    ModelSpec,
    caches_of_layer,
    rotary_bytes,
)
from ascend_vllm_plugin.planning.projection import PlannedProjection
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.source import ModelSource, read_model, weight_format_of
from ascend_vllm_plugin.planning.weights import draft_bytes

__all__ = ["plan_v4_draft", "v4_draft_problems"]


@dataclass(frozen=True)
class _Draft:
    """A draft's checkpoint and its config."""

    source: ModelSource
    spec: DSparkSpec

    @classmethod
    def of(cls, source: ModelSource, way: Speculation) -> _Draft:
        """The draft that a way of drafting names for a target."""
        stored = source if way.model is None else read_model(way.model)
        if not isinstance(stored.spec, DeepseekV4Spec):
            raise InvalidInputError(
                f"a draft of model_type={stored.config['model_type']!r} for DeepSeek-V4",
                "its DSpark's config is the target's with keys of its own",
                "Name another draft.",
            )
        spec, target = DSparkSpec.from_config(stored.config), source.spec
        for name, given, wanted in (
            ("hidden_size", spec.target_hidden_size, target.hidden_size),
            ("vocab_size", spec.vocab_size, target.vocab_size),
        ):
            if given != wanted:
                raise InvalidInputError(
                    f"a draft with {name}={given}",
                    f"the target has {wanted}",
                    "Name a draft of this target.",
                )
        return cls(stored, spec)

    def rules(self, few: ModelSpec, shard: ModelShard) -> Mapping[str, TensorRule]:
        """Tensors that are held: of what a checkpoint may lack, those that it has."""
        assert isinstance(few, DeepseekV4Spec)
        assert isinstance(shard, Shard)
        found = dspark_table(replace(self.spec, main=few), shard).rules
        # A config alone says nothing of it, so that the confidence head is counted.
        kept: Container[str] = self.source.stored or [
            name for name, rule in found.items() if rule.param == CONFIDENCE
        ]
        return {name: rule for name, rule in found.items() if not rule.optional or name in kept}


def plan_v4_draft(
    source: ModelSource,
    request: PlanRequest,
    target: DraftTarget,
    projection: PlannedProjection | None,
) -> PlannedDraft:
    """Count a draft of the target's own kind of layers, each with a window cache.

    Args:
        source: the target.
        request: what is planned for.
        target: the same, in the terms of all drafts.
        projection: of attention's output, which the draft's layers have as the target's.

    Raises:
        InvalidInputError: another draft, or one that does not belong to the target.
    """
    assert request.draft is not None
    draft = _Draft.of(source, request.draft)
    main = draft.spec.main
    resolver = draft.source.resolver if request.weight_format in ("auto", "stored") else None
    weights = draft_bytes(
        draft.rules,
        main,
        request.layout,
        target.dtype,
        weight_format_of(draft.source.config, request.weight_format, resolver),
        resolver=resolver,
        projection=None if projection is None else projection.part,
        projection_quantised=projection is not None and projection.variant.quantised,
    )
    caches = [
        kind
        for layer in draft.spec.layers
        for kind in caches_of_layer(
            main,
            layer,
            dtype=target.dtype,
            device=request.device,
            block_tokens=request.block_size,
            keep_dtype=request.cache_dtype == "model",
        )
    ]
    buffers = draft_buffers(
        target,
        request.step,
        target.hidden_size,
        rotary_bytes(main, target.max_model_len, dtype=target.dtype),
        flags=request.speculative_tokens > 1,
        # vLLM takes the draft for one that reads all streams.
        streams=main.hc_mult,
    )
    read = len(draft.spec.target_layers)
    return PlannedDraft(
        weights, tuple(caches), buffers, draft_step(target, request.step, read), True
    )


def v4_draft_problems(source: ModelSource, way: Speculation) -> list[str]:
    """What keeps a draft's checkpoint from being served, told from its config and its headers.

    Args:
        source: the target.
        way: names the draft, or leaves it to the target's checkpoint.
    """
    try:
        draft = _Draft.of(source, way)
        shard = Shard.of(draft.spec.main, 1, 0, (0, draft.spec.vocab_size))
        forms = WeightForms(dspark_table(draft.spec, shard), draft.source.resolver)
    except InvalidInputError as error:
        return [str(error)]
    if not draft.source.stored:
        return [f"{draft.source.path}: there is no *.safetensors file here: download the weights"]
    return forms.problems + forms.table.problems(draft.source.stored)
