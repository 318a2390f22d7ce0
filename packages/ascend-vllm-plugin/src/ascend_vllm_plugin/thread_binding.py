"""Which cores each worker computes on, where vLLM's own choice fails or wastes a core."""

from __future__ import annotations

from typing import NamedTuple

# vLLM keeps one core free for the front end. With this few cores that costs more than it gives.
_FEW_CORES = 4


class Binding(NamedTuple):
    """A value for ``VLLM_CPU_OMP_THREADS_BIND`` and why it was chosen."""

    value: str
    reason: str


def choose_binding(workers: int) -> Binding | None:
    """Binding for ``workers`` processes on this machine, or None to leave it to vLLM.

    vLLM binds one worker to each NUMA node and refuses more workers than nodes.
    """
    # vLLM imports the platform, and so this module, while it is being imported itself.
    from vllm.utils.cpu_resource_utils import get_allowed_cpu_list, get_visible_memory_node

    cores = sorted(cpu.id for cpu in get_allowed_cpu_list())
    nodes = len(get_visible_memory_node())
    return split_cores(cores, nodes, workers)


def split_cores(cores: list[int], nodes: int, workers: int) -> Binding | None:
    """See :func:`choose_binding`; ``cores`` are logical CPU ids."""
    if workers > len(cores):
        return Binding("nobind", f"{workers} workers share {len(cores)} cores")
    if workers > nodes:
        share = len(cores) // workers
        parts = [cores[i * share : (i + 1) * share] for i in range(workers)]
        value = "|".join(",".join(map(str, part)) for part in parts)
        return Binding(value, f"{workers} workers on {nodes} NUMA node(s)")
    if workers == 1 and len(cores) <= _FEW_CORES:
        return Binding(",".join(map(str, cores)), "all of the few cores compute")
    return None
