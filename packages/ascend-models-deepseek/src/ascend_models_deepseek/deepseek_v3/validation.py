"""Refuses configs, engine settings and checkpoints before anything is started or allocated."""

from __future__ import annotations

import logging

from ascend_fused_moe.vllm.checkpoint_forms import check_forms, checkpoint_forms
from ascend_ops_core.errors import InvalidInputError
from vllm.config import CompilationMode, VllmConfig

from ascend_models_deepseek.architectures import ARCHITECTURES
from ascend_models_deepseek.context_parallel import check_context_parallel
from ascend_models_deepseek.deepseek_v3.config import DeepseekV3Spec
from ascend_models_deepseek.deepseek_v3.latents import check_latents
from ascend_models_deepseek.deepseek_v3.quantization import LAYER_RULES
from ascend_models_deepseek.deepseek_v3.sharding import Shard
from ascend_models_deepseek.deepseek_v3.weights import main_table, mtp_table
from ascend_models_deepseek.deepseek_v4.build import cache_family
from ascend_models_deepseek.deepseek_v4.validation import check_engine_config, expert_ranks

logger = logging.getLogger(__name__)


def check_draft(spec: DeepseekV3Spec) -> None:
    """Refuse MTP speculation for a model without MTP layers."""
    if not spec.num_mtp_layers:
        raise InvalidInputError(
            "speculative method 'mtp'",
            "the model's config has num_nextn_predict_layers=0",
            "Use a checkpoint with MTP layers, or serve without speculation.",
        )


def _leave_uncompiled(vllm_config: VllmConfig) -> None:
    """Take back vLLM's default mode, which compiles.

    Nothing tells it from one that was asked for.
    """
    compilation = vllm_config.compilation_config
    if compilation.mode != CompilationMode.NONE:
        logger.info("this model is not compiled: its operators are opaque to torch.compile")
        compilation.mode = CompilationMode.NONE


def check_request(vllm_config: VllmConfig) -> None:
    """Everything that can be told in the user's process, before workers start.

    Raises:
        InvalidInputError: a config, engine setting or quantization that cannot be served.
        CheckpointError: a local checkpoint whose description or headers do not fit, with every
            problem.
    """
    model = vllm_config.model_config
    architecture = ARCHITECTURES[model.hf_config.model_type]
    spec = architecture.spec.from_config(model.hf_config)
    parallel = vllm_config.parallel_config
    if parallel.enable_eplb:
        raise InvalidInputError(
            "enable_eplb=True",
            "experts of models with latent attention stay where they were loaded",
            "Leave enable_eplb unset; enable_expert_parallel alone works.",
        )
    _leave_uncompiled(vllm_config)
    check_engine_config(spec, vllm_config)
    check_latents(vllm_config, sparse=architecture.sparse)
    check_context_parallel(vllm_config)
    shard = Shard.of(
        spec,
        parallel.tensor_parallel_size,
        0,
        (0, spec.vocab_size),
        whole_experts=expert_ranks(parallel) > 1,
    )
    speculative = vllm_config.speculative_config
    drafts = speculative is not None and speculative.method == "mtp"
    if drafts:
        check_draft(spec)
    tables = [main_table, mtp_table] if drafts else [main_table]
    for table in tables:
        forms = checkpoint_forms(table(architecture, spec, shard), vllm_config, LAYER_RULES)
        check_forms(forms, vllm_config, cache_family())
