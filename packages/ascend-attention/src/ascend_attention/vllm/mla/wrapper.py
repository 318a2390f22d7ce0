"""AscendMultiHeadLatentAttentionWrapper: latent attention of vLLM's own models on our operators.

vLLM's wrapper builds an attention layer that has a backend on neither a CPU nor an NPU. Ours keeps
the projections that the model made, in their quantisation and with their parallel forms, and puts
our cache and our operators between them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from ascend_ops_core.devices import current_facts
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.rotary import apply_rotary
from ascend_ops_core.ops.rotary_table import gather_cos_sin
from ascend_ops_core.vllm.rotary import float32_tables, is_tabled
from torch import nn
from torch.nn import functional as F
from vllm.config import CacheConfig, VllmConfig, get_current_vllm_config
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.mla import MLAModules, MultiHeadLatentAttentionWrapper
from vllm.model_executor.layers.quantization import QuantizationConfig
from vllm.platforms import current_platform

from ascend_attention.caches import CacheRole, mla_caches
from ascend_attention.layers.mla import AscendMultiHeadLatentAttention, MLAQuery, MLAShape
from ascend_attention.vllm.linear.latent import AscendHybridMLACache
from ascend_attention.vllm.mla.cache_layers import AscendMLACache
from ascend_attention.vllm.mla.impl import AscendMLAImpl
from ascend_attention.vllm.mla.latent_layer import LatentLayer
from ascend_attention.vllm.mla.settings import check_upstream_latents

__all__ = ["AscendMultiHeadLatentAttentionWrapper"]


class UpstreamProjections(AscendMultiHeadLatentAttention):
    """vLLM's modules around attention, read as the weights of ours; it owns none of them.

    Args:
        shape: sizes.
        modules: projections and norms that the model made.
    """

    def __init__(self, shape: MLAShape, modules: MLAModules) -> None:
        nn.Module.__init__(self)
        self.shape = shape
        self.given = modules
        self.split = False
        self.fused = None

    @property
    def kv_b(self) -> torch.Tensor:  # type: ignore[override]
        """``[h, N + V, L]`` of what is loaded now."""
        weight: torch.Tensor = self.given.kv_b_proj.weight
        shape = self.shape
        return weight.view(shape.num_heads, shape.nope_dim + shape.value_dim, shape.kv_lora_rank)

    @property
    def kv_a_norm(self) -> torch.Tensor:  # type: ignore[override]
        """``[L]`` float32."""
        weight: torch.Tensor = self.given.kv_a_layernorm.weight
        return weight.float()

    def project(self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> MLAQuery:
        """See :meth:`AscendMultiHeadLatentAttention.project`."""
        shape, given = self.shape, self.given
        if shape.q_lora_rank is None:
            q_input, kv = hidden, _product(given.kv_a_proj_with_mqa, hidden)
            query = _product(given.q_proj, hidden)
        else:
            assert given.q_a_layernorm is not None
            down = _product(given.fused_qkv_a_proj, hidden)
            latent, kv = down.split([shape.q_lora_rank, shape.row_width], dim=-1)
            q_input = given.q_a_layernorm(latent.contiguous())
            query = _product(given.q_b_proj, q_input)
        heads = query.unflatten(-1, (shape.num_heads, shape.head_dim))
        heads = apply_rotary(heads, cos, sin, interleaved=shape.interleaved, at_end=True)
        q_nope, q_rope = heads.split([shape.nope_dim, shape.rope_dim], dim=-1)
        if self.split and shape.interleaved:
            q_rope = q_rope.unflatten(-1, (-1, 2)).mT.flatten(-2)
        return MLAQuery(q_input, q_nope, q_rope, kv)

    def output(self, values: torch.Tensor) -> torch.Tensor:
        """``[T, H]`` from values ``[T, h, V]``, summed over ranks as the model's module does it."""
        return _product(self.given.o_proj, values.flatten(1))


class KeptLinearMethod(UnquantizedLinearMethod):
    """A weight that attention reads as it was loaded, where vLLM would pack it for a CPU."""

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Nothing."""

    def apply(
        self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """``x [..., K] @ weight.T + bias``."""
        weight: Any = layer.weight
        return F.linear(x, weight, bias)


class AscendMultiHeadLatentAttentionWrapper(LatentLayer, MultiHeadLatentAttentionWrapper):
    """Latent attention of one layer, in the place and with the arguments of vLLM's wrapper.

    Beside recurrent states its rows share their pool of blocks; elsewhere the cache is that of
    :class:`ascend_attention.vllm.mla.MLAAttention`. Rows are cached in the dtype of ``kv_b_proj``.

    Args:
        hidden_size: ``H``.
        num_heads: query heads on this rank.
        scale: factor on dot products.
        qk_nope_head_dim: ``N``.
        qk_rope_head_dim: ``R``.
        v_head_dim: ``V``.
        q_lora_rank: width of the query latent, or None.
        kv_lora_rank: ``L``.
        mla_modules: projections, norms and rotation; ``rotary_emb`` may be None.
        cache_config: not needed: the engine's is.
        quant_config: not needed: the projections are made.
        prefix: name of the layer, with its number.
        skip_topk: for layers with an indexer, which are refused.
        non_causal_multi_token_decode: refused.
        allow_short_prefill_indexer_scoring_skip: for layers with an indexer.

    Raises:
        InvalidInputError: an indexer, tokens that see those behind them, a quantised
            ``kv_b_proj``, a norm or a rotation of another kind, eight-bit caches, or contexts that
            ranks share.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        scale: float,
        qk_nope_head_dim: int,
        qk_rope_head_dim: int,
        v_head_dim: int,
        q_lora_rank: int | None,
        kv_lora_rank: int,
        mla_modules: MLAModules,
        cache_config: CacheConfig | None = None,
        quant_config: QuantizationConfig | None = None,
        prefix: str = "",
        skip_topk: bool = False,
        non_causal_multi_token_decode: bool = False,
        allow_short_prefill_indexer_scoring_skip: bool = False,
    ) -> None:
        nn.Module.__init__(self)
        config = get_current_vllm_config()
        check_upstream_latents(config)
        _check_modules(mla_modules, prefix, qk_rope_head_dim, non_causal_multi_token_decode)
        self.hidden_size, self.num_heads = hidden_size, num_heads
        self.qk_nope_head_dim, self.qk_rope_head_dim = qk_nope_head_dim, qk_rope_head_dim
        self.qk_head_dim = qk_nope_head_dim + qk_rope_head_dim
        self.v_head_dim, self.q_lora_rank, self.kv_lora_rank = v_head_dim, q_lora_rank, kv_lora_rank
        self.prefix = prefix
        # Under vLLM's names, by which models find parameters.
        self.fused_qkv_a_proj = mla_modules.fused_qkv_a_proj
        self.kv_a_proj_with_mqa = mla_modules.kv_a_proj_with_mqa
        self.q_a_layernorm = mla_modules.q_a_layernorm
        self.q_b_proj, self.q_proj = mla_modules.q_b_proj, mla_modules.q_proj
        self.kv_a_layernorm, self.kv_b_proj = mla_modules.kv_a_layernorm, mla_modules.kv_b_proj
        self.rotary_emb, self.o_proj = mla_modules.rotary_emb, mla_modules.o_proj
        self.g_proj = mla_modules.g_proj
        kept: Any = self.kv_b_proj
        if type(kept.quant_method) is UnquantizedLinearMethod:
            kept.quant_method = KeptLinearMethod()
        rotary: Any = self.rotary_emb
        shape = MLAShape(
            hidden_size, num_heads, q_lora_rank, kv_lora_rank,
            qk_nope_head_dim, qk_rope_head_dim, v_head_dim, scale,
            mla_modules.kv_a_layernorm.variance_epsilon,
            interleaved=rotary is None or not rotary.is_neox_style,
        )  # fmt: skip
        self.weights = UpstreamProjections(shape, mla_modules)
        device = current_facts().family if current_platform.device_type == "npu" else "cpu"
        hybrid = _beside_states(config)
        role = CacheRole.LATENT
        kind = mla_caches(
            kv_lora_rank=kv_lora_rank,
            rotary_dim=qk_rope_head_dim,
            dtype=kept.weight.dtype,
            device=device,
            block_tokens=None if hybrid else config.cache_config.block_size,
        )[role]
        made = AscendHybridMLACache if hybrid else AscendMLACache
        self.cache = made(kind, kv_lora_rank, f"{prefix}.{role}")
        self.impl = AscendMLAImpl(self.weights, self.cache)
        self.choose_layout(device)
        if rotary is not None:
            float32_tables(rotary)

    def forward(
        self,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        llama_4_scaling: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``[T, H]``, summed over ranks as ``o_proj`` does it.

        Args:
            positions: ``[T]``.
            hidden_states: ``[T, H]`` normed input of the layer; rows behind the step's tokens are
                padding.
            llama_4_scaling: ``[T, 1, 1]`` factor on the queries, or None.
        """
        cos, sin = self._rotation(positions)
        query = self.weights.project(hidden_states, cos, sin)
        if llama_4_scaling is not None:
            query = replace(
                query,
                q_nope=query.q_nope * llama_4_scaling,
                q_rope=query.q_rope * llama_4_scaling,
            )
        values = self.impl.forward(query, cos, sin)
        if self.g_proj is not None:
            gate = _product(self.g_proj, hidden_states).sigmoid()
            values = (values.flatten(1) * gate).view(values.shape)
        return self.weights.output(values)

    def _rotation(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``[T, R / 2]`` float32 each; an angle of zero where nothing is rotated."""
        rotary: Any = self.rotary_emb
        if rotary is None:
            angles = positions.new_zeros(
                (positions.shape[0], self.qk_rope_head_dim // 2), dtype=torch.float32
            )
            return angles.cos(), angles
        return gather_cos_sin(*float32_tables(rotary), positions)


def _product(module: Any, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = module(x)[0]
    return result


def _beside_states(config: VllmConfig) -> bool:
    """Whether the model, or the one that it drafts for, keeps recurrent states."""
    models = [config.model_config]
    if config.speculative_config is not None:
        models.append(config.speculative_config.target_model_config)
    return any(model is not None and model.is_hybrid for model in models)


def _check_modules(modules: MLAModules, prefix: str, rotated: int, non_causal: bool) -> None:
    """Refuse a layer of which attention here would compute something else.

    Raises:
        InvalidInputError: see :class:`AscendMultiHeadLatentAttentionWrapper`.
    """
    reasons = {
        "an indexer": modules.indexer is not None or modules.is_sparse,
        "tokens that see those behind them": non_causal,
        "a norm of latents that is no RMS norm": not isinstance(modules.kv_a_layernorm, RMSNorm),
    }
    for what, found in reasons.items():
        if found:
            raise InvalidInputError(
                f"latent attention of {prefix} with {what}",
                "vLLM's models are served with causal attention over all latents",
                "Serve another model.",
            )
    rotary: Any = modules.rotary_emb
    if rotary is not None and not (is_tabled(rotary) and rotary.rotary_dim == rotated):
        raise InvalidInputError(
            f"rotation of {prefix} by {type(rotary).__name__}",
            f"all {rotated} channels of the shared key are rotated, by a table with a row for each "
            "position",
            "Serve another model.",
        )
    projection: Any = modules.kv_b_proj
    if not isinstance(projection.quant_method, UnquantizedLinearMethod):
        raise InvalidInputError(
            f"{prefix}.kv_b_proj quantised by {type(projection.quant_method).__name__}",
            "it is multiplied into queries and results, and so kept in the model's dtype",
            "Leave kv_b_proj out of the quantisation.",
        )
