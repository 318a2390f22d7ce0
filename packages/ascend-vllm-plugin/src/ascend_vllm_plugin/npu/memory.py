"""What a rank's memory is used for, in the terms of `ascend-vllm plan`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

_MIB = 1024**2


def figures(worker: Any) -> dict[str, int]:
    """Bytes by use, as allocated or as vLLM measured them, of a worker that has its caches.

    Args:
        worker: the worker.

    Returns:
        ``weights``: parameters of the model and its draft. ``loaded``: what loading them took, with
        rotary tables and static buffers. ``buffers``: what else was held before the caches were
        made. ``activations``: the largest step beyond that. ``graphs``: set aside for captured
        graphs. The last three are 0 where the size of the caches was given and nothing was
        measured. ``captured``: number of graphs. ``caches``: the pool of blocks.
        ``num_blocks``: its blocks. ``block_tables``: block tables and slots.
        ``allocated``: everything that is allocated now.
    """
    runner = worker.model_runner
    models = [runner.model, getattr(getattr(runner, "drafter", None), "model", None)]
    held = [model.parameters() for model in models if model is not None]
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
        "captured": len(getattr(runner.model, "captured_sizes", ())),
        "caches": _bytes(layer.kv_cache for layer in layers),
        "num_blocks": worker.cache_config.num_gpu_blocks,
        "block_tables": sum(
            table.block_table.gpu.nbytes + table.slot_mapping.gpu.nbytes for table in tables
        ),
        "allocated": torch.accelerator.memory_allocated(worker.device),
    }


def describe(found: Mapping[str, int]) -> str:
    """The figures for a log, sizes in MiB."""
    counts = ("captured", "num_blocks")
    return ", ".join(
        f"{name} {value}" if name in counts else f"{name} {value / _MIB:.1f} MiB"
        for name, value in found.items()
    )


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the storages of device tensors, each once."""
    found = [one.untyped_storage() for one in tensors if one.numel()]
    return sum({storage.data_ptr(): storage.nbytes() for storage in found}.values())
