"""Refuses configs, engine settings and checkpoints before anything is started or allocated."""

from __future__ import annotations

from ascend_ops_core.errors import InvalidInputError
from vllm.config import VllmConfig

from ascend_models_deepseek.architectures import ARCHITECTURES
from ascend_models_deepseek.deepseek_v3.config import DeepseekV3Spec
from ascend_models_deepseek.deepseek_v3.latents import check_latents
from ascend_models_deepseek.deepseek_v3.sharding import Shard
from ascend_models_deepseek.deepseek_v3.weights import main_table, mtp_table
from ascend_models_deepseek.deepseek_v4.headers import check_headers
from ascend_models_deepseek.deepseek_v4.sharding import ExpertRank
from ascend_models_deepseek.deepseek_v4.validation import check_engine_config, expert_ranks


def check_draft(spec: DeepseekV3Spec) -> None:
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
    architecture = ARCHITECTURES[model.hf_config.model_type]
    spec = architecture.spec.from_config(model.hf_config)
    check_engine_config(spec, vllm_config)
    check_latents(vllm_config, sparse=hasattr(spec, "index_topk"))
    parallel = vllm_config.parallel_config
    ranks = expert_ranks(parallel)
    shard = Shard.of(
        spec,
        parallel.tensor_parallel_size,
        0,
        (0, spec.vocab_size),
        ExpertRank(0, ranks) if ranks > 1 else None,
    )
    speculative = vllm_config.speculative_config
    drafts = speculative is not None and speculative.method == "mtp"
    if drafts:
        check_draft(spec)
    if vllm_config.load_config.load_format in ("auto", "safetensors", "hf"):
        check_headers(main_table(architecture, spec, shard), model.model)
        if drafts:
            check_headers(mtp_table(architecture, spec, shard), model.model)
