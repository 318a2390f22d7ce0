"""Refuses configs, engine settings and checkpoints before anything is started or allocated."""

from __future__ import annotations

from typing import Protocol

from ascend_fused_moe.eplb import initial_placement
from ascend_fused_moe.vllm.checkpoint_forms import check_forms, checkpoint_forms
from ascend_ops_core.checkpoint.table import WeightTable
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.vllm.block_drafts import check_block_target, read_target_layers
from ascend_ops_core.vllm.checkpoint_quantization import METHOD
from vllm.config import CompilationMode, ModelConfig, ParallelConfig, VllmConfig

from ascend_models_deepseek.context_parallel import refuse_context_parallel
from ascend_models_deepseek.deepseek_v4.build import cache_family, redundant_experts
from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_models_deepseek.deepseek_v4.dspark_config import DSparkSpec
from ascend_models_deepseek.deepseek_v4.dspark_weights import dspark_table
from ascend_models_deepseek.deepseek_v4.output_projection import chosen_projection
from ascend_models_deepseek.deepseek_v4.quantization import LAYER_RULES
from ascend_models_deepseek.deepseek_v4.sharding import Shard
from ascend_models_deepseek.deepseek_v4.weights import main_table, mtp_table


class ServedSizes(Protocol):
    """What the engine's settings are held against."""

    @property
    def max_position_embeddings(self) -> int:
        """Tokens of the longest context."""

    @property
    def n_routed_experts(self) -> int:
        """Experts of a layer."""


def check_engine_config(spec: ServedSizes, vllm_config: VllmConfig) -> None:
    """Check what the config alone cannot tell.

    Raises:
        InvalidInputError: the first setting that does not fit, with the remedy.
    """
    model = vllm_config.model_config
    if model.max_model_len > spec.max_position_embeddings:
        raise InvalidInputError(
            f"max_model_len={model.max_model_len}",
            f"the model's rotary table ends at max_position_embeddings="
            f"{spec.max_position_embeddings}",
            f"Use at most {spec.max_position_embeddings}.",
        )
    if vllm_config.quant_config is not None and vllm_config.quant_config.get_name() != METHOD:
        raise InvalidInputError(
            f"quantization {vllm_config.quant_config.get_name()!r}",
            "the checkpoint's own description says how it is quantized",
            "Leave --quantization unset.",
        )
    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        raise InvalidInputError(
            f"pipeline_parallel_size={vllm_config.parallel_config.pipeline_parallel_size}",
            "the layers of this model cannot be split over pipeline stages yet",
            "Use tensor_parallel_size instead.",
        )
    _check_expert_parallel(spec, vllm_config.parallel_config)
    if vllm_config.compilation_config.mode != CompilationMode.NONE:
        raise InvalidInputError(
            f"compilation mode {vllm_config.compilation_config.mode}",
            "this model is not compiled: its operators are opaque to torch.compile",
            "Pass enforce_eager=True (--enforce-eager), or leave the compilation mode unset.",
        )
    if vllm_config.cache_config.cache_dtype not in ("auto", "bfloat16", "float32", "float16"):
        raise InvalidInputError(
            f"kv_cache_dtype={vllm_config.cache_config.cache_dtype!r}",
            "caches keep the model's dtype on this device",
            "Leave kv_cache_dtype unset.",
        )


def _check_expert_parallel(spec: ServedSizes, parallel: ParallelConfig) -> None:
    ranks = expert_ranks(parallel)
    if ranks > spec.n_routed_experts:
        raise InvalidInputError(
            f"enable_expert_parallel=True on {ranks} ranks (tensor_parallel_size="
            f"{parallel.tensor_parallel_size} x data_parallel_size={parallel.data_parallel_size})",
            f"the model has n_routed_experts={spec.n_routed_experts}, and each rank needs one",
            f"Use at most {spec.n_routed_experts} ranks, or leave enable_expert_parallel unset.",
        )
    if parallel.enable_eplb and parallel.enable_elastic_ep:
        raise InvalidInputError(
            "enable_elastic_ep=True",
            "the ranks of a running engine stay the same here",
            "Leave enable_elastic_ep unset; enable_eplb alone works.",
        )
    if spec.n_routed_experts:
        initial_placement(spec.n_routed_experts, ranks, redundant_experts(parallel) or 0)


def expert_ranks(parallel: ParallelConfig) -> int:
    """Ranks that whole routed experts lie on; 1 where each rank has all, or a slice of each."""
    if not parallel.enable_expert_parallel:
        return 1
    return parallel.tensor_parallel_size * parallel.data_parallel_size


def check_draft(spec: DeepseekV4Spec) -> None:
    """Refuse MTP speculation for a model without MTP layers."""
    if not spec.num_mtp_layers:
        raise InvalidInputError(
            "speculative method 'mtp'",
            "the model's config has num_nextn_predict_layers=0",
            "Use a checkpoint with MTP layers, or serve without speculation.",
        )


def check_request(vllm_config: VllmConfig) -> None:
    """Everything that can be told in the user's process, before workers start.

    Raises:
        InvalidInputError: a config or engine setting that cannot be served.
        CheckpointError: a local checkpoint whose headers do not fit, with every problem.
    """
    model = vllm_config.model_config
    spec = DeepseekV4Spec.from_config(model.hf_config)
    check_engine_config(spec, vllm_config)
    refuse_context_parallel(vllm_config)
    shard = _first_shard(spec, vllm_config.parallel_config)
    chosen_projection(spec, vllm_config, cache_family())
    speculative = vllm_config.speculative_config
    method = None if speculative is None else speculative.method
    if method == "mtp":
        check_draft(spec)
    _check_forms(spec, vllm_config, main_table(spec, shard))
    if method == "mtp":
        _check_forms(spec, vllm_config, mtp_table(spec, shard))
    if method == "dspark":
        _check_dspark(vllm_config)


def _first_shard(spec: DeepseekV4Spec, parallel: ParallelConfig) -> Shard:
    return Shard.of(
        spec,
        parallel.tensor_parallel_size,
        0,
        (0, spec.vocab_size),
        whole_experts=expert_ranks(parallel) > 1,
    )


def _check_dspark(vllm_config: VllmConfig) -> None:
    speculative = vllm_config.speculative_config
    assert speculative is not None
    stored = speculative.draft_model_config
    draft = DSparkSpec.from_config(stored.hf_config)
    check_block_target(draft, vllm_config)
    read_target_layers(draft, vllm_config)
    shard = _first_shard(draft.main, vllm_config.parallel_config)
    _check_forms(draft.main, vllm_config, dspark_table(draft, shard), stored)


def _check_forms(
    spec: DeepseekV4Spec,
    vllm_config: VllmConfig,
    table: WeightTable,
    stored: ModelConfig | None = None,
) -> None:
    family = cache_family()
    forms = checkpoint_forms(table, vllm_config, LAYER_RULES, stored)
    if forms.schemes and chosen_projection(spec, vllm_config, family).variant.name == "fp8":
        raise InvalidInputError(
            "o_proj='fp8' for a quantized checkpoint",
            "it quantizes weights of 16 bits after loading",
            "Leave o_proj unset: the projection is computed as it is stored.",
        )
    check_forms(forms, vllm_config, family, stored)
