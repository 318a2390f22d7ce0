"""Refuses configs, engine settings and checkpoints before anything is started or allocated."""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping

from ascend_attention.msa_caches import check_block
from ascend_fused_moe.vllm.checkpoint_forms import check_forms
from ascend_ops_core.checkpoint.table import WeightTable
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.vllm.checkpoint_quantization import METHOD
from vllm.config import CompilationMode, ParallelConfig, VllmConfig

from ascend_models_minimax.minimax_m3.build import cache_family
from ascend_models_minimax.minimax_m3.checkpoint import Checkpoint
from ascend_models_minimax.minimax_m3.config import MiniMaxM3Spec
from ascend_models_minimax.minimax_m3.sharding import Shard
from ascend_models_minimax.minimax_m3.vision.config import VisionSpec
from ascend_models_minimax.minimax_m3.vision.weights import whole_table
from ascend_models_minimax.minimax_m3.weights import main_table, mtp_table

logger = logging.getLogger(__name__)

DENSE_BLOCK_TOKENS = 128
"""Tokens per block of a model that selects none."""


def check_engine_config(spec: MiniMaxM3Spec, vllm_config: VllmConfig) -> None:
    """Check what the config alone cannot tell.

    Raises:
        InvalidInputError: the first setting that does not fit, with the remedy.
    """
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
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
    if parallel.pipeline_parallel_size > 1:
        raise InvalidInputError(
            f"pipeline_parallel_size={parallel.pipeline_parallel_size}",
            "the layers of this model cannot be split over pipeline stages yet",
            "Use tensor_parallel_size instead.",
        )
    if parallel.decode_context_parallel_size > 1:
        raise InvalidInputError(
            f"decode_context_parallel_size={parallel.decode_context_parallel_size}",
            "ranks share the scores of blocks, not the caches",
            "Leave decode_context_parallel_size unset.",
        )
    if parallel.enable_eplb:
        raise InvalidInputError(
            "enable_eplb=True",
            "experts of MiniMax-M3 stay where they were loaded",
            "Leave enable_eplb unset; enable_expert_parallel alone works.",
        )
    given = vllm_config.additional_config
    if isinstance(given, Mapping) and given.get("latent_cache_dtype"):
        raise InvalidInputError(
            f"additional_config latent_cache_dtype={given['latent_cache_dtype']!r}",
            "MiniMax-M3 caches keys and values, in the model's dtype, and no latents",
            "Remove it.",
        )
    multimodal = model.multimodal_config
    if multimodal is not None and multimodal.mm_encoder_only:
        raise InvalidInputError(
            "mm_encoder_only=True",
            "the vision tower of MiniMax-M3 is served with its text model",
            "Leave mm_encoder_only unset.",
        )
    _check_expert_parallel(spec, parallel)
    if vllm_config.compilation_config.mode != CompilationMode.NONE:
        raise InvalidInputError(
            f"compilation mode {vllm_config.compilation_config.mode}",
            "this model is not compiled: its operators are opaque to torch.compile",
            "Pass enforce_eager=True (--enforce-eager), or leave the compilation mode unset.",
        )
    if vllm_config.cache_config.cache_dtype not in ("auto", "bfloat16", "float32", "float16"):
        raise InvalidInputError(
            f"kv_cache_dtype={vllm_config.cache_config.cache_dtype!r}",
            "caches keep the model's dtype",
            "Leave kv_cache_dtype unset.",
        )


def _check_expert_parallel(spec: MiniMaxM3Spec, parallel: ParallelConfig) -> None:
    ranks = expert_ranks(parallel)
    if ranks > max(spec.n_routed_experts, 1):
        raise InvalidInputError(
            f"enable_expert_parallel=True on {ranks} ranks (tensor_parallel_size="
            f"{parallel.tensor_parallel_size} x data_parallel_size={parallel.data_parallel_size})",
            f"the model has num_local_experts={spec.n_routed_experts}, and each rank needs one",
            f"Use at most {spec.n_routed_experts} ranks, or leave enable_expert_parallel unset.",
        )


def expert_ranks(parallel: ParallelConfig) -> int:
    """Ranks that whole routed experts lie on; 1 where each rank has all, or a slice of each."""
    if not parallel.enable_expert_parallel:
        return 1
    return parallel.tensor_parallel_size * parallel.data_parallel_size


def check_draft(spec: MiniMaxM3Spec) -> None:
    """Refuse MTP speculation for a model without MTP layers."""
    if not spec.num_mtp_layers:
        raise InvalidInputError(
            "speculative method 'mtp'",
            "the model's config has num_mtp_modules=0",
            "Use a checkpoint with MTP layers, or serve without speculation.",
        )


def set_block_size(spec: MiniMaxM3Spec, vllm_config: VllmConfig, device: str) -> None:
    """Make a block of the caches what the indexer selects.

    Args:
        spec: the model's config.
        vllm_config: the engine's config, changed in place.
        device: ``cpu``, or a device family.

    Raises:
        InvalidInputError: the user asked for another size, or the device cannot have this one.
    """
    cache = vllm_config.cache_config
    if spec.selection is None:
        if not cache.user_specified_block_size:
            cache.block_size = DENSE_BLOCK_TOKENS
        check_block(cache.block_size, device)
        return
    wanted = spec.selection.block_size
    check_block(wanted, device)
    if cache.user_specified_block_size and cache.block_size != wanted:
        raise InvalidInputError(
            f"block_size={cache.block_size}",
            f"the indexer selects blocks of sparse_block_size={wanted} tokens, which are the "
            "caches' pages",
            f"Leave --block-size unset, or use {wanted}.",
        )
    cache.block_size = wanted


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
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    spec = MiniMaxM3Spec.from_config(model.hf_config)
    _leave_uncompiled(vllm_config)
    check_engine_config(spec, vllm_config)
    set_block_size(spec, vllm_config, cache_family())
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
    checkpoint = Checkpoint(spec, model)

    def main(root: str, apart: Container[int]) -> WeightTable:
        table = main_table(spec, shard, root, apart=apart)
        if model.is_multimodal_model:
            return whole_table(table, VisionSpec.from_config(model.hf_config))
        return table

    def draft(root: str, apart: Container[int]) -> WeightTable:
        return mtp_table(spec, shard, root, apart=apart)

    for table in (main, draft) if drafts else (main,):
        check_forms(checkpoint.forms(table), vllm_config, cache_family())
