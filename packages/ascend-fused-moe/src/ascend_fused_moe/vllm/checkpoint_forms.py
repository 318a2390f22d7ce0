"""In which form an engine's checkpoint has a model's weights."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascend_ops_core.checkpoint.headers import check_headers
from ascend_ops_core.checkpoint.table import WeightTable, raise_for
from ascend_ops_core.devices import current_facts
from ascend_ops_core.quantized_weights import LayerRules, QuantizationResolver, read_modelslim
from ascend_ops_core.quantized_weights.weight import check_family

from ascend_fused_moe.quantized_rules import WeightForms

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

__all__ = ["check_forms", "checkpoint_forms", "log_forms", "resolver_of_config"]

logger = logging.getLogger(__name__)


def resolver_of_config(config: Any, source: str, rules: LayerRules) -> QuantizationResolver:
    """Which layer of a checkpoint is stored how.

    Args:
        config: vLLM's config object of the model.
        source: the model's directory, beside whose files ModelSlim's description may lie, or name.
        rules: what the model adds to descriptions.

    Raises:
        InvalidInputError: a format that is not known, or a description that cannot be read.
    """
    # vLLM reads it from the text model's part as well.
    described = getattr(config, "quantization_config", None) or getattr(
        getattr(config, "text_config", None), "quantization_config", None
    )
    given = {"quantization_config": described}
    experts = getattr(config, "expert_dtype", None)
    if experts is not None:
        given["expert_dtype"] = experts
    return QuantizationResolver.of(given, rules, read_modelslim(Path(source)))


def checkpoint_forms(
    table: WeightTable,
    vllm_config: VllmConfig,
    rules: LayerRules,
    stored: ModelConfig | None = None,
) -> WeightForms:
    """What the checkpoint of an engine stores for a table of tensors.

    Args:
        table: the tensors.
        vllm_config: the engine's config.
        rules: what the model adds to descriptions.
        stored: whose checkpoint it is; None for the target's.

    Raises:
        InvalidInputError: a quantisation that is not known.
        CheckpointError: its description does not fit the model.
    """
    model = vllm_config.model_config if stored is None else stored
    forms = WeightForms(table, resolver_of_config(model.hf_config, model.model, rules))
    raise_for(forms.problems)
    return forms


def check_forms(
    forms: WeightForms, vllm_config: VllmConfig, family: str, stored: ModelConfig | None = None
) -> None:
    """Refuse schemes that the device does not hold, and headers that do not fit.

    Args:
        forms: of the checkpoint.
        vllm_config: the engine's config.
        family: the device's.
        stored: whose checkpoint it is; None for the target's.

    Raises:
        InvalidInputError: the device family has no such values.
        CheckpointError: lists every problem of the headers.
    """
    for scheme in sorted(forms.schemes, key=lambda one: one.name):
        if family != "cpu":
            check_family(scheme, current_facts())
    if vllm_config.load_config.load_format in ("auto", "safetensors", "hf"):
        model = vllm_config.model_config if stored is None else stored
        check_headers(forms.table, model.model)


def log_forms(forms: WeightForms, *, slower: str = "", caches: str) -> None:
    """Say in which form a model holds its weights and caches.

    Args:
        forms: of the checkpoint.
        slower: what that costs.
        caches: how caches are stored, where the checkpoint has a wish.
    """
    if not forms.schemes:
        return
    names = ", ".join(sorted(one.name for one in forms.schemes))
    logger.info("weights stay as stored: %s%s", names, f"; {slower}" if slower else "")
    if forms.cache.kv or forms.cache.index:
        logger.info(
            "the checkpoint wants key-value rows in %s, indexer keys in %s: %s",
            forms.cache.kv or "their dtype",
            forms.cache.index or "theirs",
            caches,
        )
