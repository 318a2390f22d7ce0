"""Work of the device that this process does on the host: collectives between processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ascend_ops_core.testing.simulated_npu.aliases import to_cpu_alias
from ascend_ops_core.testing.simulated_npu.graphs import capturing


def record_host_call(
    name: str,
    call: Callable[[], object],
    reads: Sequence[torch.Tensor],
    writes: Sequence[torch.Tensor],
) -> None:
    """Run ``call`` as if the device did it: a captured region records it like a kernel.

    Args:
        name: what it is called in errors.
        call: works on CPU aliases of the tensors, and may be called many times.
        reads: npu tensors that it reads.
        writes: npu tensors that it writes; none of them is made by it.
    """
    graph = capturing()
    if graph is not None:
        aliases = [to_cpu_alias(one) for one in writes]
        for alias in aliases:
            graph.keep_contents(alias)
        graph.add(name, call, [*(to_cpu_alias(one) for one in reads), *aliases])
    call()
