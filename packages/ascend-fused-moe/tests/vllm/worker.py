"""vLLM's fused experts with this package's runner, on two ranks that are tensor-parallel."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from itertools import count
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed

HIDDEN, INTER, SHARED, EXPERTS = 16, 12, 8, 5
LORAS, LORA_RANK = 2, 3
_names = count()


@dataclass(frozen=True)
class Layer:
    """What vLLM's factory is asked for, and the tokens.

    Attributes:
        tokens: number of tokens.
        expert_parallel: whole experts on each rank; else slices.
        shared: add shared experts.
        experts: number of experts.
        adapters: the adapter of each token, -1 for none; None for a layer without vLLM's LoRA.
        cpu: with the runner that is registered on a CPU, instead of an NPU's.
        options: of the factory.
    """

    tokens: int = 7
    expert_parallel: bool = True
    shared: bool = False
    experts: int = EXPERTS
    adapters: tuple[int, ...] | None = None
    cpu: bool = False
    options: dict[str, Any] = field(default_factory=dict)


def values_of(layer: Layer) -> dict[str, torch.Tensor]:
    """Whole weights, tokens and logits, the same in every process."""
    new = torch.Generator().manual_seed(3)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=new) * shape[-1] ** -0.5

    return {
        "w1": randn(layer.experts, INTER, HIDDEN),
        "w3": randn(layer.experts, INTER, HIDDEN),
        "w2": randn(layer.experts, HIDDEN, INTER),
        "shared1": randn(SHARED, HIDDEN),
        "shared3": randn(SHARED, HIDDEN),
        "shared2": randn(HIDDEN, SHARED),
        "x": torch.randn(layer.tokens, HIDDEN, generator=new),
        "logits": torch.randn(layer.tokens, layer.experts, generator=new),
        "token_ids": torch.randint(0, 9, (layer.tokens,), generator=new),
    }


class SharedSlice(torch.nn.Module):
    """This rank's slice of the shared experts, whose outputs vLLM sums."""

    def __init__(self, values: dict[str, torch.Tensor], rank: int) -> None:
        super().__init__()
        self.gate = values["shared1"].chunk(2)[rank]
        self.up = values["shared3"].chunk(2)[rank]
        self.down = values["shared2"].chunk(2, dim=1)[rank]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.silu(x @ self.gate.T) * (x @ self.up.T)
        return hidden @ self.down.T


@cache
def _config() -> Any:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state

    config = VllmConfig()
    with set_current_vllm_config(config):
        rank, ranks = distributed.get_rank(), distributed.get_world_size()
        parallel_state.init_distributed_environment(ranks, rank, "", rank, "gloo")
        parallel_state.initialize_model_parallel(ranks)
    return config


def _made(layer: Layer) -> Any:
    from ascend_fused_moe.vllm.fused_moe import cpu, method, runner
    from vllm.model_executor.custom_op import op_registry_oot
    from vllm.model_executor.layers.fused_moe.layer import FusedMoEFactory

    runner_cls, method_cls = (
        (cpu.CpuFusedMoERunner, cpu.CpuUnquantizedFusedMoEMethod)
        if layer.cpu
        else (runner.AscendFusedMoERunner, method.AscendUnquantizedFusedMoEMethod)
    )
    op_registry_oot["UnquantizedFusedMoEMethod"] = method_cls
    values, rank = values_of(layer), distributed.get_rank()
    config = _config()
    config.parallel_config.enable_expert_parallel = layer.expert_parallel
    config.lora_config = None if layer.adapters is None else _lora_config()
    options = {"top_k": 2, **layer.options}
    return FusedMoEFactory(
        num_experts=layer.experts,
        hidden_size=HIDDEN,
        intermediate_size=INTER,
        params_dtype=torch.float32,
        prefix=f"layers.{next(_names)}.experts",
        shared_experts=SharedSlice(values, rank) if layer.shared else None,
        runner_cls=runner_cls,
        **options,
    )


def run(layer: Layer) -> dict[str, Any]:
    """Make a layer, load its weights as vLLM does, and call it."""
    from vllm.config import set_current_vllm_config
    from vllm.forward_context import set_forward_context

    values, config = values_of(layer), _config()
    with set_current_vllm_config(config), torch.inference_mode():
        runner = made = _made(layer)
        experts = made.routed_experts
        for e in range(layer.experts):
            for shard, name in (("w1", "w13"), ("w3", "w13"), ("w2", "w2")):
                experts.weight_loader(
                    getattr(experts, f"{name}_weight"),
                    values[shard][e],
                    f"experts.{e}.{shard}.weight",
                    shard,
                    e,
                )
        experts.quant_method.process_weights_after_loading(experts)
        if layer.adapters is not None:
            made = _with_adapters(made, layer)
        with set_forward_context(None, config, num_tokens=layer.tokens):
            output = made(values["x"], values["logits"], input_ids=values["token_ids"])
    taken = getattr(runner, "taken", True)
    return {
        "output": output.numpy(),
        "held": experts.w13_weight.shape[0],
        "taken": taken,
        "ways": sorted(kind.value for kind in runner._methods._made) if taken else [],
        "reduced": runner._fused_output_is_reduced,
    }


def factors_of(layer: Layer) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Both factors of `w1`, `w2` and `w3`: ``[L, experts, r, K]`` and ``[L, experts, N, r]``."""
    new = torch.Generator().manual_seed(4)
    sizes = {"w1": (INTER, HIDDEN), "w2": (HIDDEN, INTER), "w3": (INTER, HIDDEN)}
    return {
        name: (
            torch.randn(LORAS, layer.experts, LORA_RANK, columns, generator=new) * 0.3,
            torch.randn(LORAS, layer.experts, rows, LORA_RANK, generator=new) * 0.3,
        )
        for name, (rows, columns) in sizes.items()
    }


def _lora_config() -> Any:
    from vllm.config.lora import LoRAConfig

    return LoRAConfig(max_loras=LORAS, max_lora_rank=8, lora_dtype=torch.float32)


def _with_adapters(made: Any, layer: Layer) -> Any:
    """The layer as vLLM's LoRA manager wraps it, and every adapter as the manager sets it."""
    from vllm.lora.layers.fused_moe import FusedMoEWithLoRA

    assert layer.adapters is not None
    # The wrapper hands it to the layer whole, which asks for this alone.
    mapping = SimpleNamespace(token_lora_indices=torch.tensor(layer.adapters))
    wrapped = FusedMoEWithLoRA(made)
    wrapped.create_lora_weights(LORAS, _lora_config())
    held = made.routed_experts.w13_weight.shape[0]
    first = distributed.get_rank() * held if layer.expert_parallel else 0
    factors = factors_of(layer)
    for index in range(LORAS):
        a, b = (
            [factors[name][which][index, first : first + held] for name in ("w1", "w2", "w3")]
            for which in range(2)
        )
        wrapped.set_lora(index, a, b)
    wrapped.set_mapping(mapping)
    return wrapped


def refused(layer: Layer) -> str:
    """The error with which a layer is refused."""
    from ascend_ops_core import InvalidInputError
    from vllm.config import set_current_vllm_config

    with set_current_vllm_config(_config()):
        try:
            made = _made(layer)
            if layer.adapters is not None:
                _with_adapters(made, layer)
        except InvalidInputError as error:
            return str(error)
    return ""
