"""The shapes that are measured: of about 256 million parameters, on which all peers run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from ascend_models_deepseek.testing.tiny_v4 import TinyV4Spec, write_checkpoint
from ascend_models_deepseek.testing.tiny_v32 import TinyV32Spec, write_v32_checkpoint
from ascend_models_kimi.testing import TinyKimiLinearSpec, write_kimi_linear_checkpoint
from ascend_models_minimax.testing.tiny_m3 import TinyM3Spec, write_m3_checkpoint
from ascend_vllm_plugin.testing import TinyQwen3NextSpec, write_qwen3_next_checkpoint

Cell = tuple[str, int]
"""Dtype and batch."""


@dataclass(frozen=True)
class Model:
    """A shape, and what is said about it.

    Attributes:
        title: of the model.
        spec: the shape.
        write: writes a checkpoint of a spec.
        transformers: name of the peer's class.
        attention: the peer's attention, its fastest that runs the model.
        total: parameters.
        active: parameters that a token reads.
        small: a shape with as many layers and almost no weights.
        targets: factors over the peer in prefill and decode that a cell must reach.
        others: a further peer's decode, tokens/s on another machine.
        settings: further arguments of our engine.
    """

    title: str
    spec: Any
    write: Callable[..., Path]
    transformers: str
    attention: str
    total: float
    active: float
    small: Any
    targets: dict[Cell, tuple[float, float]]
    others: dict[Cell, float] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


V4 = TinyV4Spec(
    compress_ratios=(0, 128, 4, 128, 4, 128, 4, 0),
    num_hash_layers=2,
    vocab_size=8192,
    hidden_size=1024,
    moe_intermediate_size=512,
    num_attention_heads=16,
    head_dim=128,
    qk_rope_head_dim=64,
    q_lora_rank=256,
    o_groups=4,
    o_lora_rank=256,
    n_routed_experts=16,
    num_experts_per_tok=4,
    swiglu_limit=10.0,
    sliding_window=128,
    index_n_heads=16,
    index_head_dim=64,
    index_topk=64,
    yarn=None,
    max_position_embeddings=4096,
)

V32 = TinyV32Spec(
    vocab_size=8192,
    hidden_size=1024,
    intermediate_size=2048,
    moe_intermediate_size=512,
    num_hidden_layers=9,
    num_attention_heads=16,
    q_lora_rank=256,
    kv_lora_rank=256,
    qk_nope_head_dim=64,
    qk_rope_head_dim=64,
    v_head_dim=64,
    n_routed_experts=16,
    num_experts_per_tok=4,
    index_n_heads=16,
    index_head_dim=128,
    index_topk=64,
    yarn=None,
    max_position_embeddings=4096,
)

M3 = TinyM3Spec(
    vocab_size=8192,
    hidden_size=1024,
    intermediate_size=512,
    dense_intermediate_size=2048,
    num_attention_heads=16,
    num_key_value_heads=4,
    head_dim=64,
    rotary_dim=32,
    num_local_experts=16,
    num_experts_per_tok=4,
    swiglu_limit=7.0,
    index_dim=64,
    block_size=32,
    topk_blocks=4,
    sparse_layers=(0, 1, 1, 1, 1, 1, 1, 1),
    moe_layers=(0, 1, 1, 1, 1, 1, 1, 1),
)

M3_SETTINGS: dict[str, Any] = {
    "hf_overrides": {"architectures": ["MiniMaxM3SparseForCausalLM"]},
}
"""Serves the text model of a checkpoint that has images as well."""

KIMI_LINEAR = TinyKimiLinearSpec(
    vocab_size=8192,
    hidden_size=512,
    intermediate_size=1024,
    moe_intermediate_size=256,
    num_hidden_layers=8,
    num_attention_heads=8,
    kv_lora_rank=128,
    qk_rope_head_dim=32,
    qk_nope_head_dim=64,
    v_head_dim=64,
    num_experts=16,
    num_experts_per_token=4,
    kda_layers=(1, 2, 3, 5, 6, 7),
    kda_heads=8,
    kda_head_dim=64,
)

QWEN3_NEXT = TinyQwen3NextSpec(
    seed=0,
    vocab_size=8192,
    given={
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 256,
        "shared_expert_intermediate_size": 256,
        "mlp_only_layers": [],
        "max_position_embeddings": 4096,
    },
)


def _small(spec: Any, tiny: Any, names: str) -> Any:
    return replace(spec, **{name: getattr(tiny, name) for name in names.split()})


MODELS = {
    "v4": Model(
        "DeepSeek-V4",
        V4,
        write_checkpoint,
        "DeepseekV4ForCausalLM",
        "eager",
        256.45e6,
        97.0e6,
        _small(
            V4,
            TinyV4Spec(),
            "hidden_size vocab_size moe_intermediate_size head_dim qk_rope_head_dim q_lora_rank "
            "o_lora_rank num_attention_heads o_groups index_head_dim",
        ),
        {
            ("float32", 1): (1.0, 2.5),
            ("float32", 8): (1.0, 2.0),
            ("bfloat16", 1): (4.0, 2.5),
            ("bfloat16", 8): (4.0, 2.5),
        },
        # llama.cpp on the same shape, from a quiet two-core AVX2 machine.
        {
            ("float32", 1): 35.3,
            ("float32", 8): 62.3,
            ("bfloat16", 1): 55.0,
            ("bfloat16", 8): 94.0,
        },
    ),
    "v32": Model(
        "DeepSeek-V3.2",
        V32,
        write_v32_checkpoint,
        "DeepseekV32ForCausalLM",
        "sdpa",
        267.36e6,
        107.98e6,
        _small(
            V32,
            TinyV32Spec(),
            "hidden_size vocab_size intermediate_size moe_intermediate_size num_attention_heads "
            "q_lora_rank kv_lora_rank qk_nope_head_dim v_head_dim index_head_dim qk_rope_head_dim",
        ),
        {(dtype, batch): (1.0, 1.0) for dtype in ("float32", "bfloat16") for batch in (1, 8)},
    ),
    "m3": Model(
        "MiniMax-M3",
        M3,
        write_m3_checkpoint,
        "MiniMaxM3SparseForConditionalGeneration",
        "sdpa",
        233.64e6,
        93.13e6,
        _small(
            M3,
            TinyM3Spec(),
            "hidden_size vocab_size intermediate_size dense_intermediate_size num_attention_heads "
            "num_key_value_heads head_dim rotary_dim index_dim",
        ),
        {(dtype, batch): (1.0, 1.0) for dtype in ("float32", "bfloat16") for batch in (1, 8)},
        settings=M3_SETTINGS,
    ),
    "kimi_linear": Model(
        "Kimi-Linear",
        KIMI_LINEAR,
        write_kimi_linear_checkpoint,
        "KimiLinearForCausalLM",
        "sdpa",
        65.70e6,
        28.48e6,
        _small(
            KIMI_LINEAR,
            TinyKimiLinearSpec(),
            "hidden_size vocab_size intermediate_size moe_intermediate_size num_attention_heads "
            "kv_lora_rank qk_nope_head_dim v_head_dim qk_rope_head_dim kda_heads kda_head_dim",
        ),
        {(dtype, batch): (1.0, 1.0) for dtype in ("float32", "bfloat16") for batch in (1, 8)},
    ),
    "qwen3_next": Model(
        "Qwen3-Next",
        QWEN3_NEXT,
        write_qwen3_next_checkpoint,
        "Qwen3NextForCausalLM",
        "sdpa",
        70.15e6,
        28.20e6,
        replace(
            QWEN3_NEXT,
            vocab_size=512,
            given=QWEN3_NEXT.given
            | {
                "hidden_size": 64,
                "intermediate_size": 96,
                "head_dim": 32,
                "linear_key_head_dim": 16,
                "linear_value_head_dim": 16,
                "moe_intermediate_size": 32,
                "shared_expert_intermediate_size": 32,
            },
        ),
        {(dtype, batch): (1.0, 1.0) for dtype in ("float32", "bfloat16") for batch in (1, 8)},
    ),
}


def checkpoint_dir(root: Path, model: str, dtype: str) -> Path:
    """Where the checkpoint of a model and dtype lies."""
    return root / f"{model}-256m-{dtype}"


def ensure_checkpoint(root: Path, model: str, dtype: str, report: Callable[[str], Any]) -> Path:
    """The checkpoint of a model and dtype, written if it is not there."""
    directory = checkpoint_dir(root, model, dtype)
    if not (directory / "model.safetensors").exists():
        report(f"writing {directory} ...")
        MODELS[model].write(MODELS[model].spec, directory, dtype=getattr(torch, dtype))
    return directory
