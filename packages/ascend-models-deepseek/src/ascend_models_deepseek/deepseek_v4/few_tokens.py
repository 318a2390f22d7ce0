"""Runs a decoder layer's step of a few tokens on a CPU by the kernels of ``cpu_layer.py``."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ascend_attention.caches import CacheRole
from ascend_attention.layers.output_projection import OutputProjection
from ascend_attention.vllm.dsa.few_tokens import FewTokensOnCPU, refuse_rows
from ascend_ops_core.cpu_kernels import CpuKernels

from ascend_models_deepseek.deepseek_v4.rotation import StepRotation

if TYPE_CHECKING:
    from ascend_models_deepseek.deepseek_v4.decoder_layer import DeepseekV2DecoderLayer

_cpu = CpuKernels("ascend_models_deepseek.deepseek_v4.cpu_layer")

Array = np.ndarray[Any, Any]

_DTYPES = (torch.float32, torch.bfloat16)
_NO_TABLE = np.zeros((0, 0), dtype=np.int32)
_NO_BIAS = np.zeros(0, dtype=np.float32)


class FewTokensLayer:
    """One decoder layer, for steps of a few tokens of one process on a CPU.

    Args:
        layer: the layer, whose weights are read where they lie.
    """

    def __init__(self, layer: DeepseekV2DecoderLayer) -> None:
        self.layer = layer
        self.attention: FewTokensOnCPU = layer.attn.dsa.impl.few_tokens
        self._fits: dict[torch.dtype, bool] = {}
        self._scratch: dict[int, _Scratch] = {}

    def run(
        self, streams: torch.Tensor, input_ids: torch.Tensor, rotation: StepRotation
    ) -> torch.Tensor | None:
        """New streams ``[T, n, H]``, or None for a step that the layer's operators have to do.

        Raises:
            IndexError: a row lies outside its cache.
            InvalidInputError: a token id outside the table of hash routing.
        """
        layer = self.layer
        if not self._takes(streams):
            return None
        metas = layer.attn.dsa.impl.metadata()
        kernels, attention = _cpu.load(), self.attention
        if metas is None or kernels is None:
            return None
        if metas[CacheRole.SLIDING_WINDOW].layout.num_tokens != streams.shape[0]:
            return None
        attend = attention.kernels(streams)
        if attend is None:
            return None
        made = self._scratch.get(streams.shape[0])
        if made is None:
            made = self._scratch[streams.shape[0]] = _Scratch.of(layer, streams)
        as_numpy = kernels.as_numpy
        x = as_numpy(streams)
        cos, sin = rotation.compress if layer.attn.compressed else rotation.main
        cos, sin = as_numpy(cos), as_numpy(sin)
        attn, moe = layer.attn, layer.ffn
        writes = attention.writes(attend, metas, made.hidden, cos, sin)
        if not kernels.before_attention(
            x,
            _connection(kernels, layer.hc_attn, layer.attn_norm),
            made.hidden,
            made.post,
            made.comb,
            (
                as_numpy(attn.wqa_wkv),
                as_numpy(attn.wq_b),
                as_numpy(attn.q_norm),
                as_numpy(attn.kv_norm),
                np.float32(attn.norm_eps),
            ),
            cos,
            sin,
            made.latent,
            made.query,
            made.kv,
            writes.arguments,
        ):
            refuse_rows()
        attention.finish_entries(metas, streams.dtype)
        attention.attend(attend, metas, writes, made.query, made.attended)
        if not kernels.behind_attention(
            made.attended,
            as_numpy(attn.o_proj.wo_a),
            as_numpy(attn.o_proj.wo_b),
            cos,
            sin,
            made.out,
            x,
            made.post,
            made.comb,
            made.between,
            _connection(kernels, layer.hc_ffn, layer.ffn_norm),
            made.hidden,
            as_numpy(moe.gate),
            made.logits,
            as_numpy(input_ids),
            as_numpy(moe.tid2eid) if moe.is_hash else _NO_TABLE,
            _NO_BIAS if moe.is_hash else as_numpy(moe.gate_bias),
            kernels.SCORING_CODES[moe.scoring],
            moe.renormalize,
            np.float32(moe.scale),
            made.weights,
            made.ids,
        ):
            # The operator names what is wrong.
            moe.route(torch.zeros(made.logits.shape), input_ids)
            raise IndexError("a token or one of its experts lies outside the routing table")
        new = torch.empty_like(streams)
        w13, w2 = as_numpy(moe.experts.w13), as_numpy(moe.experts.w2)
        shared = w13[0, :0], w2[0, :, :0].reshape(w2.shape[1], 0)
        if moe.shared_experts is not None:
            shared = as_numpy(moe.shared_experts.w13), as_numpy(moe.shared_experts.w2)
        kernels.experts(
            made.hidden,
            w13,
            w2,
            *shared,
            made.weights,
            made.ids,
            np.float32(moe.experts.swiglu_limit or np.inf),
            made.out,
            made.between,
            made.post,
            made.comb,
            as_numpy(new),
        )
        return new

    def _takes(self, streams: torch.Tensor) -> bool:
        alone = not self.layer.tensor_parallel and self.layer.ffn.runner is None
        if not streams.is_cpu or not alone or torch.compiler.is_compiling():
            return False
        if _cpu.usable(streams) is None or not streams.is_contiguous():
            return False
        if streams.dtype not in self._fits:
            self._fits[streams.dtype] = _weights_fit(self.layer, streams.dtype)
        return self._fits[streams.dtype]


@dataclass(frozen=True)
class _Scratch:
    """What the kernels of a layer pass on to each other in steps of one size.

    Attributes:
        hidden: ``[T, H]``, input of a block.
        post: ``[T, n]`` float32.
        comb: ``[T, n, n]`` float32.
        latent: ``[T, L]``.
        query: ``[T, h, D]``.
        kv: ``[T, D]``.
        attended: ``[T, h, D]``.
        out: ``[T, H]``, output of a block.
        between: ``[T, n, H]``, the streams between the blocks.
        logits: ``[T, E]``.
        weights: ``[T, k]`` float32.
        ids: ``[T, k]`` int64.
    """

    hidden: Array
    post: Array
    comb: Array
    latent: Array
    query: Array
    kv: Array
    attended: Array
    out: Array
    between: Array
    logits: Array
    weights: Array
    ids: Array

    @classmethod
    def of(cls, layer: DeepseekV2DecoderLayer, streams: torch.Tensor) -> _Scratch:
        """For steps like ``streams [T, n, H]``."""
        tokens, n, hidden = streams.shape
        attn, moe = layer.attn, layer.ffn
        width = attn.kv_norm.shape[0]
        heads = attn.wq_b.shape[0] // width
        wide = np.dtype(np.float32 if streams.dtype == torch.float32 else np.uint16)

        def of_model(*shape: int) -> Array:
            return np.empty((tokens, *shape), dtype=wide)

        return cls(
            hidden=of_model(hidden),
            post=np.empty((tokens, n), dtype=np.float32),
            comb=np.empty((tokens, n, n), dtype=np.float32),
            latent=of_model(attn.q_norm.shape[0]),
            query=of_model(heads, width),
            kv=of_model(width),
            attended=of_model(heads, width),
            out=of_model(hidden),
            between=of_model(n, hidden),
            logits=of_model(moe.gate.shape[0]),
            weights=np.empty((tokens, moe.top_k), dtype=np.float32),
            ids=np.empty((tokens, moe.top_k), dtype=np.int64),
        )


def _connection(kernels: ModuleType, connection: Any, gain: torch.Tensor) -> tuple[Any, ...]:
    as_numpy = kernels.as_numpy
    return (
        as_numpy(connection.fn),
        as_numpy(connection.scale),
        as_numpy(connection.base),
        connection.sinkhorn_iters,
        np.float32(connection.hc_eps),
        np.float32(connection.norm_eps),
        as_numpy(gain),
    )


def _weights_fit(layer: DeepseekV2DecoderLayer, dtype: torch.dtype) -> bool:
    """Whether all weights are contiguous, the products' of ``dtype``, the others float32."""
    if dtype not in _DTYPES or type(layer.attn.o_proj) is not OutputProjection:
        return False
    attn, moe = layer.attn, layer.ffn
    products = [attn.wqa_wkv, attn.wq_b, attn.o_proj.wo_a, attn.o_proj.wo_b, moe.gate]
    products += [moe.experts.w13, moe.experts.w2]
    if moe.shared_experts is not None:
        products += [moe.shared_experts.w13, moe.shared_experts.w2]
    others = [attn.q_norm, attn.kv_norm, layer.attn_norm, layer.ffn_norm]
    for connection in (layer.hc_attn, layer.hc_ffn):
        others += [connection.fn, connection.scale, connection.base]
    if not moe.is_hash:
        others.append(moe.gate_bias)
    return (
        all(one.dtype == dtype and one.is_contiguous() for one in products)
        and all(one.dtype == torch.float32 and one.is_contiguous() for one in others)
        and (not moe.is_hash or moe.tid2eid.is_contiguous())
    )
