"""Routed experts on a CPU against transformers' and vLLM's, in one process and in turn.

Every peer gets the same weights, tokens and routing. Before each call the caches of the CPU are
filled with other data, since in a model other layers run between two calls of the same experts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import nn

from benchmarks import moe_reading

HIDDEN, INTER = 1024, 512
TOKENS = (1, 8, 64, 512)
EXPERTS = (16, 128)
TOP_K = (4, 8)
OURS = "ascend"
PEERS = ("transformers eager", "transformers grouped_mm", "vLLM", OURS)

# Has its turn among the peers, but is none.
_READING = "reading"
# Rounds of a cell: as many as fit into the seconds, within these bounds.
_ROUNDS, _SECONDS = (3, 15), 1.2
_FLUSHED = 1 << 27
# Of the largest output; bfloat16 peers round the activations and each expert's part.
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}

Run = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Routing(NamedTuple):
    """Tokens of one call and the experts they visit.

    Attributes:
        x: ``[T, HIDDEN]``.
        weights: ``[T, k]`` float32, each row sums to 1.
        ids: ``[T, k]`` int64, distinct in a row.
    """

    x: torch.Tensor
    weights: torch.Tensor
    ids: torch.Tensor


@dataclass
class Cell:
    """One row of the table.

    Attributes:
        dtype: of weights and tokens.
        experts: number of experts.
        top_k: experts of a token.
        tokens: tokens of a call.
        weight_bytes: bytes of the weights of the experts that a call visits, mean of the rounds.
        seconds: of every round, by peer.
        reading: seconds of every round for reading the weights of the visited experts once and
            nothing else, by as many threads; empty in runs that did not measure it.
        errors: largest difference from ours over the largest output, by peer.
        refused: why a peer does not run, by peer.
    """

    dtype: str
    experts: int
    top_k: int
    tokens: int
    weight_bytes: float = 0.0
    seconds: dict[str, list[float]] = field(default_factory=dict)
    reading: list[float] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Plain values for a JSON file."""
        return asdict(self)


def hold_vllm_to_avx2() -> None:
    """Make vLLM load its AVX2 kernels, which it chooses by the CPU alone."""
    mock.patch.object(torch.cpu, "_is_avx512_supported", return_value=False).start()


def measure(dtypes: list[str], experts: list[int], report: Callable[[str], None]) -> list[Cell]:
    """Run all cells of some dtypes and numbers of experts.

    Raises:
        RuntimeError: a peer's output is not ours, within the rounding of the dtype.
    """
    cells = []
    with torch.inference_mode():
        for name in dtypes:
            for number in experts:
                weights = _weights(getattr(torch, name), number)
                peers, refused = _peers(*weights)
                read = moe_reading.reader(*weights)
                for top_k in TOP_K:
                    for tokens in TOKENS:
                        cell = Cell(name, number, top_k, tokens, refused=refused)
                        _fill(cell, peers, read)
                        report(f"{name} {number} experts, top {top_k}, {tokens} tokens")
                        cells.append(cell)
    return cells


def _fill(cell: Cell, peers: dict[str, Run], read: Callable[..., None]) -> None:
    generator = torch.Generator().manual_seed(cell.tokens * 1000 + cell.top_k)
    other = np.ones(_FLUSHED // 4, dtype=np.float32)
    first = _routing(cell, generator)
    outputs = {name: run(*first) for name, run in peers.items()}
    largest = float(outputs[OURS].abs().max())
    cell.errors = {
        name: float((out.float() - outputs[OURS].float()).abs().max()) / largest
        for name, out in outputs.items()
        if name != OURS
    }
    if max(cell.errors.values()) > _TOLERANCE[getattr(torch, cell.dtype)]:
        raise RuntimeError(f"{cell.dtype} {cell.tokens} tokens: outputs differ, {cell.errors}")
    read(*first)
    turns: dict[str, Callable[..., object]] = {**peers, _READING: read}
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    visited = []
    names = list(turns)
    end = time.perf_counter() + _SECONDS
    for number in range(_ROUNDS[1]):
        if number >= _ROUNDS[0] and time.perf_counter() > end:
            break
        # Other experts and another order in every round.
        given = _routing(cell, generator)
        visited.append(given.ids.unique().numel())
        for shift in range(len(names)):
            name = names[(number + shift) % len(names)]
            # By this thread alone: worker threads of every peer have come to rest afterwards.
            other.sum()
            start = time.perf_counter()
            turns[name](*given)
            seconds[name].append(time.perf_counter() - start)
    cell.reading = seconds.pop(_READING)
    cell.seconds = seconds
    size = getattr(torch, cell.dtype).itemsize
    cell.weight_bytes = sum(visited) / len(visited) * 3 * HIDDEN * INTER * size


def _routing(cell: Cell, generator: torch.Generator) -> Routing:
    x = torch.randn(cell.tokens, HIDDEN, generator=generator)
    scores = torch.rand(cell.tokens, cell.experts, generator=generator)
    chosen = scores.topk(cell.top_k)
    weights = chosen.values / chosen.values.sum(-1, keepdim=True)
    return Routing(x.to(getattr(torch, cell.dtype)), weights, chosen.indices)


def _weights(dtype: torch.dtype, experts: int) -> tuple[nn.Parameter, nn.Parameter]:
    """Weights of the first product and of the second."""
    generator = torch.Generator().manual_seed(experts)

    def weight(*shape: int) -> nn.Parameter:
        values = torch.randn(*shape, generator=generator).mul_(shape[-1] ** -0.5)
        return nn.Parameter(values.to(dtype), requires_grad=False)

    return weight(experts, 2 * INTER, HIDDEN), weight(experts, HIDDEN, INTER)


def _peers(w13: nn.Parameter, w2: nn.Parameter) -> tuple[dict[str, Run], dict[str, str]]:
    """The peers that run here, on the same weights, and why the others do not."""
    first = Cell(str(w13.dtype).removeprefix("torch."), w13.shape[0], 1, 1)
    generator = torch.Generator().manual_seed(0)
    made: dict[str, Callable[[], Run]] = {
        "transformers eager": lambda: _transformers(w13, w2, "eager"),
        "transformers grouped_mm": lambda: _transformers(w13, w2, "grouped_mm"),
        "vLLM": lambda: _vllm(w13, w2),
        OURS: lambda: _ours(w13, w2),
    }
    peers: dict[str, Run] = {}
    refused: dict[str, str] = {}
    for name in PEERS:
        try:
            run = made[name]()
            run(*_routing(first, generator))
        except (RuntimeError, NotImplementedError) as error:
            if name == OURS:
                raise
            refused[name] = str(error).splitlines()[0]
        else:
            peers[name] = run
    return peers, refused


def _transformers(w13: nn.Parameter, w2: nn.Parameter, implementation: str) -> Run:
    from transformers import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    config = Qwen3MoeConfig(
        hidden_size=HIDDEN, moe_intermediate_size=INTER, num_experts=w13.shape[0]
    )
    config._experts_implementation = implementation
    with torch.device("meta"):
        module = Qwen3MoeExperts(config)
    module.gate_up_proj, module.down_proj = w13, w2
    # Its router hands over weights of the tokens' dtype.
    return lambda x, weights, ids: module(x, ids, weights.to(x.dtype))


def _vllm(w13: nn.Parameter, w2: nn.Parameter) -> Run:
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.cpu_fused_moe import CPUFusedMOE

    layer: Any = nn.Module()
    # It packs the weights into a copy when the layer is made; that time is not counted.
    layer.w13_weight, layer.w2_weight = w13, w2
    layer.activation = MoEActivation.SILU
    moe = CPUFusedMOE(layer)
    return lambda x, weights, ids: moe.forward_method(
        layer, x, weights, ids.int(), MoEActivation.SILU, w13.shape[0]
    )


def _ours(w13: nn.Parameter, w2: nn.Parameter) -> Run:
    from ascend_fused_moe.ops.experts import fused_experts
    from ascend_ops_core.huge_pages import move_to_huge_pages

    # As our layer does when it has loaded its weights, which transformers' peers share here.
    move_to_huge_pages([w13, w2])
    return lambda x, weights, ids: fused_experts(x, w13, w2, weights, ids)
