"""Runs decoder layers in a step of a few tokens on a CPU by the kernel of ``cpu_layer.py``."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from ascend_attention.caches import CacheRole
from ascend_attention.layers.output_projection import OutputProjection
from ascend_attention.vllm.dsa.few_tokens import FewTokensOnCPU, refuse_rows
from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.parameter_watch import ParameterWatch
from torch import nn

from ascend_models_deepseek.deepseek_v4.rotation import StepRotation

if TYPE_CHECKING:
    from ascend_models_deepseek.deepseek_v4.decoder_layer import DeepseekV2DecoderLayer

_cpu = CpuKernels("ascend_models_deepseek.deepseek_v4.cpu_layer")

Array = np.ndarray[Any, Any]

_DTYPES = (torch.float32, torch.bfloat16)
_NO_TABLE = np.zeros((0, 0), dtype=np.int32)
_NO_BIAS = np.zeros(0, dtype=np.float32)

# By the shapes of a layer and a step: layers run one after the other and leave nothing in it.
_shared_scratch: dict[tuple[Any, ...], tuple[Any, ...]] = {}


class LayerWeights(NamedTuple):
    """What a layer reads besides its attention's caches.

    Attributes:
        before: arguments of ``pre_few`` of the attention block, between streams and results.
        prologue: weights and epsilon of ``prologue_few``.
        epilogue: weights of ``epilogue_few``.
        between: arguments of ``pre_few`` of the expert block.
        routing: gate ``[E, H]``, experts ``[V, k]`` of every token (of no rows where scores
            choose), bias ``[E]`` float32 (of no values where tokens do), code of the scoring
            function, whether weights sum to 1, factor on weights.
        experts: ``[E, 2 * I, H]``, ``[E, H, I]``, shared ``[2 * S, H]`` and ``[H, S]``, of no rows
            without a shared expert, and limit, alpha and bias of the activation.
    """

    before: tuple[Any, ...]
    prologue: tuple[Any, ...]
    epilogue: tuple[Any, ...]
    between: tuple[Any, ...]
    routing: tuple[Any, ...]
    experts: tuple[Any, ...]


class LayerShape(NamedTuple):
    """Sizes of a layer: ``n``, ``H``, ``L``, ``h``, ``D``, ``E``, ``k``, and the model's dtype."""

    streams: int
    hidden: int
    latent: int
    heads: int
    width: int
    experts: int
    top_k: int
    dtype: torch.dtype


class Scratch(NamedTuple):
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
        shares: ``[T, k]`` float32, weights of the experts.
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
    shares: Array
    ids: Array

    @classmethod
    def of(cls, tokens: int, shape: LayerShape) -> Scratch:
        """For steps of ``tokens`` tokens in layers of a shape."""
        wide = np.dtype(np.float32 if shape.dtype == torch.float32 else np.uint16)

        def of_model(*more: int) -> Array:
            return np.empty((tokens, *more), dtype=wide)

        return cls(
            hidden=of_model(shape.hidden),
            post=np.empty((tokens, shape.streams), dtype=np.float32),
            comb=np.empty((tokens, shape.streams, shape.streams), dtype=np.float32),
            latent=of_model(shape.latent),
            query=of_model(shape.heads, shape.width),
            kv=of_model(shape.width),
            attended=of_model(shape.heads, shape.width),
            out=of_model(shape.hidden),
            between=of_model(shape.streams, shape.hidden),
            logits=of_model(shape.experts),
            shares=np.empty((tokens, shape.top_k), dtype=np.float32),
            ids=np.empty((tokens, shape.top_k), dtype=np.int64),
        )


class FewTokensLayer:
    """One decoder layer, for steps of a few tokens of one process on a CPU.

    Args:
        layer: the layer, whose weights are read where they lie.
    """

    def __init__(self, layer: DeepseekV2DecoderLayer) -> None:
        self.layer = layer
        self.impl = layer.attn.dsa.impl
        self.attention: FewTokensOnCPU = self.impl.few_tokens
        self.alone = not layer.tensor_parallel and layer.ffn.runner is None
        self.compressed = layer.attn.compressed
        self._watch = ParameterWatch(_parameters(layer))
        self._known: tuple[Any, ...] = ()
        self._weights: tuple[Any, ...] | None = None
        self._scratch: dict[int, tuple[Any, ...]] = {}

    def prepare(self, streams: torch.Tensor, rotation: StepRotation) -> tuple[Any, ...] | None:
        """What the layer's kernel takes besides streams ``[T, n, H]``, tokens and the result.

        None for a step that the layer's operators have to do.

        Raises:
            IndexError: a row lies beyond a block table.
        """
        # The attention's kernels take only a few tokens on a CPU, which it looks at first.
        if not self.alone:
            return None
        attend = self.attention.kernels(streams)
        kernels = None if attend is None else _cpu.load()
        if attend is None or kernels is None or not streams.is_contiguous():
            return None
        weights = self._current_weights(kernels, streams.dtype)
        steps = self.impl.steps()
        if weights is None or steps is None:
            return None
        if steps[CacheRole.SLIDING_WINDOW].layout.num_tokens != streams.shape[0]:
            return None
        scratch = self._scratch.get(streams.shape[0])
        if scratch is None:
            scratch = self._scratch[streams.shape[0]] = _scratch(kernels, self.layer, streams)
        return (
            *rotation.on_host[1 if self.compressed else 0],
            weights,
            self.attention.arrays,
            self.attention.step(attend, steps),
            self.attention.scratch(attend, streams),
            scratch,
        )

    def refuse(self, result: int, tokens: torch.Tensor) -> None:
        """Raise for what the layer's kernel has refused.

        Raises:
            IndexError: a row lies outside its cache.
            InvalidInputError: a token id outside the table of hash routing.
        """
        kernels = _cpu.load()
        assert kernels is not None
        if result == kernels.ROWS:
            refuse_rows()
        moe = self.layer.ffn
        # The operator names what is wrong.
        moe.route(moe.gate.new_zeros((tokens.shape[0], moe.gate.shape[0])), tokens)
        raise IndexError("a token or one of its experts lies outside the routing table")

    def _current_weights(self, kernels: ModuleType, dtype: torch.dtype) -> tuple[Any, ...] | None:
        """:class:`LayerWeights`, plain, or None where they are none that the kernels take."""
        known = dtype, self._watch.addresses()
        if known != self._known:
            self._known, self._scratch = known, {}
            fit = _weights_fit(self.layer, dtype)
            self._weights = kernels.plain(_weights(kernels, self.layer)) if fit else None
        return self._weights


def run_layers(
    layers: Sequence[FewTokensLayer],
    streams: torch.Tensor,
    input_ids: torch.Tensor,
    rotation: StepRotation,
) -> torch.Tensor | None:
    """New streams ``[T, n, H]`` behind some layers, or None if operators have to do the step.

    Args:
        layers: at least one.
        streams: ``[T, n, H]``, left as they are.
        input_ids: ``[T]`` integer.
        rotation: the step's.

    Raises:
        IndexError: a row lies outside its cache.
        InvalidInputError: a token id outside the table of hash routing.
    """
    prepared = []
    for layer in layers:
        arguments = layer.prepare(streams, rotation)
        if arguments is None:
            return None
        prepared.append(arguments)
    kernels = _cpu.load()
    assert kernels is not None
    given, tokens = kernels.as_numpy(streams), kernels.as_numpy(input_ids)
    new = torch.empty_like(streams)
    # Layers read one of two buffers and fill the other, the last one the result.
    buffers = [kernels.as_numpy(new), np.empty_like(given)]
    for i, arguments in enumerate(prepared):
        result_buffer = buffers[(len(layers) - 1 - i) % 2]
        result = kernels.layer_step(given, tokens, *arguments, result_buffer)
        if result != kernels.DONE:
            layers[i].refuse(result, input_ids)
        given = result_buffer
    return new


def _scratch(
    kernels: ModuleType, layer: DeepseekV2DecoderLayer, streams: torch.Tensor
) -> tuple[Any, ...]:
    """:class:`Scratch`, plain, for steps like ``streams [T, n, H]``."""
    tokens, n, hidden = streams.shape
    attn, moe = layer.attn, layer.ffn
    width = attn.kv_norm.shape[0]
    shape = LayerShape(
        n,
        hidden,
        attn.q_norm.shape[0],
        attn.wq_b.shape[0] // width,
        width,
        moe.gate.shape[0],
        moe.top_k,
        streams.dtype,
    )
    if (tokens, shape) not in _shared_scratch:
        _shared_scratch[tokens, shape] = kernels.plain(Scratch.of(tokens, shape))
    return _shared_scratch[tokens, shape]


def _parameters(layer: DeepseekV2DecoderLayer) -> list[tuple[nn.Module, str]]:
    modules: list[nn.Module] = [layer, layer.hc_attn, layer.hc_ffn, layer.attn, layer.attn.o_proj]
    modules += [layer.ffn, layer.ffn.experts]
    if layer.ffn.shared_experts is not None:
        modules.append(layer.ffn.shared_experts)
    return [(one, name) for one in modules for name, _ in one.named_parameters(recurse=False)]


def _weights(kernels: ModuleType, layer: DeepseekV2DecoderLayer) -> LayerWeights:
    as_numpy, attn, moe = kernels.as_numpy, layer.attn, layer.ffn
    w13, w2 = as_numpy(moe.experts.w13), as_numpy(moe.experts.w2)
    shared = w13[0, :0], w2[0, :, :0].reshape(w2.shape[1], 0)
    if moe.shared_experts is not None:
        shared = as_numpy(moe.shared_experts.w13), as_numpy(moe.shared_experts.w2)
    return LayerWeights(
        before=_connection(kernels, layer.hc_attn, layer.attn_norm),
        prologue=(
            as_numpy(attn.wqa_wkv),
            as_numpy(attn.wq_b),
            as_numpy(attn.q_norm),
            as_numpy(attn.kv_norm),
            np.float32(attn.norm_eps),
        ),
        epilogue=(as_numpy(attn.o_proj.wo_a), as_numpy(attn.o_proj.wo_b)),
        between=_connection(kernels, layer.hc_ffn, layer.ffn_norm),
        routing=(
            as_numpy(moe.gate),
            as_numpy(moe.tid2eid) if moe.is_hash else _NO_TABLE,
            _NO_BIAS if moe.is_hash else as_numpy(moe.gate_bias),
            kernels.SCORING_CODES[moe.scoring],
            bool(moe.renormalize),
            np.float32(moe.scale),
        ),
        experts=(w13, w2, *shared, _activation(moe.experts.swiglu_limit)),
    )


def _activation(limit: float | None) -> tuple[np.float32, ...]:
    """Limit, alpha and bias of a SwiGLU without the latter two."""
    return np.float32(limit or np.inf), np.float32(1), np.float32(0)


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
