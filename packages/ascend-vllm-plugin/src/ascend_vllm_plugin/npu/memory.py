"""What a rank's memory is used for, in the terms of `ascend-vllm plan`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from ascend_attention.step_bytes import StepSize, block_table_bytes, metadata_bytes
from ascend_ops_core.devices import current_facts

_MIB = 1024**2


def figures(worker: Any) -> dict[str, int]:
    """Bytes by use, as allocated or as vLLM measured them, of a worker that has its caches.

    Args:
        worker: the worker.

    Returns:
        ``weights``: parameters of the model and its draft, scales included. ``loaded``: what
        loading them took, with rotary tables and static buffers. ``buffers``: what else was held
        before the caches were made. ``activations``: the largest step beyond that. ``graphs``: set
        aside for captured graphs. ``attention``: set aside for block tables and for what attention
        takes in the largest step, which are not measured. The last four are 0 where the size of
        the caches was given and nothing was measured. ``captured``: number of graphs. ``caches``:
        the pool of blocks. ``num_blocks``: its blocks. ``block_tables``: block tables and slots.
        ``allocated``: everything that is allocated now.
    """
    runner = worker.model_runner
    models = [runner.model, getattr(getattr(runner, "drafter", None), "model", None)]
    held = [_weights(model) for model in models if model is not None]
    measured = not worker.cache_config.kv_cache_memory_bytes
    set_aside = worker.cudagraph_memory_estimate if measured else 0
    layers = worker.vllm_config.compilation_config.static_forward_context.values()
    tables = runner.input_batch.block_table.block_tables
    loaded = int(runner.model_memory_usage)
    return {
        "weights": _bytes(one for parameters in held for one in parameters),
        "loaded": loaded,
        "buffers": worker.total_consumed - loaded if measured else 0,
        "activations": worker.peak_activation_memory - set_aside if measured else 0,
        "graphs": set_aside,
        "attention": worker.attention_bytes if measured else 0,
        "captured": len(getattr(runner.model, "captured_sizes", ())),
        "caches": _bytes(one for layer in layers for one in _caches(layer)),
        "num_blocks": worker.cache_config.num_gpu_blocks,
        "block_tables": sum(
            table.block_table.gpu.nbytes + table.slot_mapping.gpu.nbytes for table in tables
        ),
        "allocated": torch.accelerator.memory_allocated(worker.device),
    }


def attention_bytes(worker: Any) -> int:
    """Bytes of block tables and of what attention takes in the largest step.

    vLLM makes the former after the caches, and measures a step without the latter.

    Args:
        worker: the worker, its model loaded; 0 for a model without paged rows of ours.
    """
    from ascend_attention.vllm.dsa import DSAAttention
    from ascend_attention.vllm.dsa.cache_layers import PagedCacheLayer
    from ascend_attention.vllm.mla import AscendMLACache
    from ascend_attention.vllm.mla.latent_layer import LatentLayer
    from vllm.v1.core.kv_cache_utils import get_kv_cache_groups

    config = worker.vllm_config
    layers = config.compilation_config.static_forward_context
    kinds = {name: one.kind for name, one in layers.items() if isinstance(one, PagedCacheLayer)}
    if not kinds:
        return 0
    groups = get_kv_cache_groups(config, worker.get_kv_cache_spec())
    scheduler = config.scheduler_config
    step = StepSize(
        scheduler.max_num_batched_tokens,
        scheduler.max_num_seqs,
        config.model_config.max_model_len,
    )
    facts, model = current_facts(), worker.model_runner.get_model()
    working = [
        one.working_bytes(facts, step)
        for one in model.modules()
        if isinstance(one, DSAAttention | LatentLayer)
    ]
    working += [
        one.exchanged_bytes(step) for one in layers.values() if isinstance(one, AscendMLACache)
    ]
    shared = metadata_bytes(
        ([kinds[name] for name in group.layer_names if name in kinds] for group in groups), step
    )
    # An entry of a block table stands for a block of every rank that shares a context.
    ranks = config.parallel_config.decode_context_parallel_size
    tables = block_table_bytes((ranks * group.kv_cache_spec.block_size for group in groups), step)
    return tables + shared + max(working, default=0)


def rebalance_bytes(worker: Any) -> int:
    """Bytes that it takes to replace all experts of a layer: as they are to be and as they were.

    Args:
        worker: the worker, its model loaded; 0 where experts are not balanced.
    """
    if not worker.parallel_config.enable_eplb:
        return 0
    layers = worker.model_runner.eplb_state.balancer.layers
    return 2 * max(sum(one.nbytes for one in layer.parameters()) for layer in layers)


def describe(found: Mapping[str, int]) -> str:
    """The figures for a log, sizes in MiB."""
    counts = ("captured", "num_blocks")
    return ", ".join(
        f"{name} {value}" if name in counts else f"{name} {value / _MIB:.1f} MiB"
        for name, value in found.items()
    )


def _weights(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Parameters, and what are buffers: scales of quantised ones, and fused ones."""
    from ascend_attention.layers.mla import FUSED

    yield from model.parameters()
    for name, one in model.named_buffers():
        if name.endswith("_scale") or name.rpartition(".")[2].startswith(FUSED):
            yield one


def _caches(layer: Any) -> tuple[torch.Tensor, ...]:
    """A layer's caches: recurrent states are several, and experts have none."""
    cache: torch.Tensor | tuple[torch.Tensor, ...] = getattr(layer, "kv_cache", ())
    return (cache,) if isinstance(cache, torch.Tensor) else cache


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the storages of device tensors, each once."""
    found = [one.untyped_storage() for one in tensors if one.numel()]
    return sum({storage.data_ptr(): storage.nbytes() for storage in found}.values())
