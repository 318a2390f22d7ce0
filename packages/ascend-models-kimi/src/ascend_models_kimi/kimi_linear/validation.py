"""Refuses configs, engine settings and checkpoints before anything is started or allocated."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from ascend_fused_moe.vllm.checkpoint_forms import check_forms, checkpoint_forms
from ascend_ops_core.checkpoint.headers import check_headers
from ascend_ops_core.checkpoint.table import WeightTable
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.vllm.block_drafts import check_block_target, read_target_layers
from ascend_ops_core.vllm.checkpoint_quantization import METHOD
from vllm.config import CompilationMode, ParallelConfig, VllmConfig

from ascend_models_kimi.kimi_k3.dspark_config import K3DSparkSpec
from ascend_models_kimi.kimi_k3.dspark_weights import dspark_table
from ascend_models_kimi.kimi_k3.mtp_weights import check_drafts, mtp_table
from ascend_models_kimi.kimi_linear.build import cache_family
from ascend_models_kimi.kimi_linear.config import KimiLinearSpec
from ascend_models_kimi.kimi_linear.quantization import LAYER_RULES, restore_description
from ascend_models_kimi.kimi_linear.sharding import Shard
from ascend_models_kimi.kimi_linear.weights import main_table, text_root

logger = logging.getLogger(__name__)

_FLOATS = ("auto", "bfloat16", "float32", "float16")


def check_engine_config(spec: KimiLinearSpec, vllm_config: VllmConfig) -> None:
    """Check what the config alone cannot tell.

    Raises:
        InvalidInputError: the first setting that does not fit, with the remedy.
    """
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    if model.max_model_len > spec.max_position_embeddings:
        raise InvalidInputError(
            f"max_model_len={model.max_model_len}",
            f"the model was trained for contexts of {spec.max_position_embeddings} tokens",
            f"Use at most {spec.max_position_embeddings}.",
        )
    quant = vllm_config.quant_config
    if quant is not None and quant.get_name() != METHOD:
        raise InvalidInputError(
            f"quantization {quant.get_name()!r}",
            "a checkpoint of Kimi is read as its own description says",
            "Leave quantization unset.",
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
            "recurrent states cannot be shared out by tokens",
            "Leave decode_context_parallel_size unset.",
        )
    if parallel.enable_eplb:
        raise InvalidInputError(
            "enable_eplb=True",
            "experts of Kimi stay where they were loaded",
            "Leave enable_eplb unset; enable_expert_parallel alone works.",
        )
    given = vllm_config.additional_config
    if isinstance(given, Mapping) and given.get("latent_cache_dtype"):
        raise InvalidInputError(
            f"additional_config latent_cache_dtype={given['latent_cache_dtype']!r}",
            "Kimi's latents share a pool of blocks with states and keep the model's dtype",
            "Remove it.",
        )
    _check_expert_parallel(spec, parallel)
    if vllm_config.compilation_config.mode != CompilationMode.NONE:
        raise InvalidInputError(
            f"compilation mode {vllm_config.compilation_config.mode}",
            "this model is not compiled: its operators are opaque to torch.compile",
            "Pass enforce_eager=True (--enforce-eager), or leave the compilation mode unset.",
        )
    _check_caches(vllm_config)


def _check_caches(vllm_config: VllmConfig) -> None:
    cache = vllm_config.cache_config
    if cache.cache_dtype not in _FLOATS:
        raise InvalidInputError(
            f"kv_cache_dtype={cache.cache_dtype!r}",
            "caches keep the model's dtype",
            "Leave kv_cache_dtype unset.",
        )
    for name, value in (
        ("mamba_cache_dtype", cache.mamba_cache_dtype),
        ("mamba_ssm_cache_dtype", cache.mamba_ssm_cache_dtype),
    ):
        if value not in ("auto", "float32") or (name == "mamba_cache_dtype" and value != "auto"):
            raise InvalidInputError(
                f"{name}={value!r}",
                "recurrent states are float32, and the convolution's inputs have the model's dtype",
                f"Leave {name} unset.",
            )
    if cache.mamba_cache_mode == "all":
        raise InvalidInputError(
            "mamba_cache_mode='all'",
            "a prefix is reused from the ends of its blocks",
            "Use 'align', or leave it unset.",
        )


def _check_expert_parallel(spec: KimiLinearSpec, parallel: ParallelConfig) -> None:
    ranks = expert_ranks(parallel)
    if ranks > max(spec.num_experts, 1):
        raise InvalidInputError(
            f"enable_expert_parallel=True on {ranks} ranks (tensor_parallel_size="
            f"{parallel.tensor_parallel_size} x data_parallel_size={parallel.data_parallel_size})",
            f"the model has num_experts={spec.num_experts}, and each rank needs one",
            f"Use at most {spec.num_experts} ranks, or leave enable_expert_parallel unset.",
        )


def expert_ranks(parallel: ParallelConfig) -> int:
    """Ranks that whole routed experts lie on; 1 where each rank has all, or a slice of each."""
    if not parallel.enable_expert_parallel:
        return 1
    return parallel.tensor_parallel_size * parallel.data_parallel_size


def _leave_uncompiled(vllm_config: VllmConfig) -> None:
    """Take back vLLM's default mode, which compiles.

    Nothing tells it from one that was asked for.
    """
    compilation = vllm_config.compilation_config
    if compilation.mode != CompilationMode.NONE:
        logger.info("this model is not compiled: its operators are opaque to torch.compile")
        compilation.mode = CompilationMode.NONE


def _check_dspark(spec: KimiLinearSpec, vllm_config: VllmConfig) -> None:
    """Refuse a draft that cannot be served, and say behind which layers it reads the streams."""
    speculative = vllm_config.speculative_config
    assert speculative is not None
    draft = speculative.draft_model_config
    drafted = K3DSparkSpec.from_config(draft.hf_config, spec)
    check_block_target(drafted, vllm_config)
    read_target_layers(drafted, vllm_config)
    if vllm_config.load_config.load_format not in ("auto", "safetensors", "hf"):
        return
    ranks = vllm_config.parallel_config.tensor_parallel_size
    shard = Shard.of(drafted.text, ranks, 0, (0, spec.vocab_size))
    check_headers(dspark_table(drafted, shard), draft.model)


def check_request(vllm_config: VllmConfig) -> None:
    """Everything that can be told in the user's process, before workers start.

    Raises:
        InvalidInputError: a config or engine setting that cannot be served.
        CheckpointError: a local checkpoint whose headers do not fit, with every problem.
    """
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    spec = KimiLinearSpec.from_config(model.hf_config)
    _leave_uncompiled(vllm_config)
    check_engine_config(spec, vllm_config)
    speculative = vllm_config.speculative_config
    if speculative is not None and speculative.method == "dspark":
        _check_dspark(spec, vllm_config)
    shard = Shard.of(
        spec,
        parallel.tensor_parallel_size,
        0,
        (0, spec.vocab_size),
        whole_experts=expert_ranks(parallel) > 1,
    )
    if vllm_config.load_config.load_format not in ("auto", "safetensors", "hf"):
        return
    tables: list[Callable[[KimiLinearSpec, Shard, str], WeightTable]] = [main_table]
    if speculative is not None and speculative.method == "mtp":
        check_drafts(spec)
        tables.append(mtp_table)
    restore_description(model.hf_config)
    for table in tables:
        plain = table(spec, shard, text_root(model.hf_config))
        check_forms(checkpoint_forms(plain, vllm_config, LAYER_RULES), vllm_config, cache_family())
