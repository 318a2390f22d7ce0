"""Work of the device that this process does on the host: collectives between processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ascend_ops_core.testing.simulated_npu.aliases import to_cpu_alias, without_owning
from ascend_ops_core.testing.simulated_npu.graphs import capturing


def record_host_call(
    name: str,
    call: Callable[..., object],
    reads: Sequence[torch.Tensor],
    writes: Sequence[torch.Tensor],
) -> None:
    """Run ``call`` as if the device did it: a captured region records it like a kernel.

    Args:
        name: what it is called in errors.
        call: gets CPU aliases of ``reads`` and then of ``writes``; called again by every replay.
        reads: npu tensors that it reads.
        writes: npu tensors that it writes.
    """
    aliases = [to_cpu_alias(one) for one in (*reads, *writes)]
    graph = capturing()
    if graph is not None:
        for written in aliases[len(reads) :]:
            graph.keep_contents(written)
        unowned = [without_owning(one) for one in aliases]
        graph.add(name, lambda: call(*unowned), aliases)
    call(*aliases)
