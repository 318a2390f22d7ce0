"""Lets ranks on a CPU start where a killed engine left the memory that its ranks shared.

Upstream symbol: ``_CPUSHMDistributed._init_cpu_shm`` of
``vllm.distributed.device_communicators.cpu_communicator`` (0.27.1). Ranks share files in
``/dev/shm`` that are named after the port at which they meet, and creating one fails with errno 17
where it exists. A killed engine leaves its own, and ports return. Nobody else can be at this port,
so what is there under a rank's name is nobody's.
"""

from __future__ import annotations

import logging
from functools import wraps
from pathlib import Path
from typing import Any

__all__ = ["replace_stale_memory"]

_FOLDER = Path("/dev/shm")

logger = logging.getLogger(__name__)


def replace_stale_memory() -> None:
    """Let each rank remove the file of its name before it makes one; may be called repeatedly.

    Raises:
        AttributeError: vLLM's class has no such method any more.
    """
    from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed

    upstream = _CPUSHMDistributed._init_cpu_shm
    if hasattr(upstream, "__wrapped__"):
        return

    @wraps(upstream)
    def init_cpu_shm(self: Any) -> int:
        stale = _FOLDER / f"{self.group_name}_{self.communicator.rank}"
        if stale.exists():
            logger.warning("%s is left of an engine that was killed, and is replaced", stale)
            stale.unlink(missing_ok=True)
        handle: int = upstream(self)
        return handle

    _CPUSHMDistributed._init_cpu_shm = init_cpu_shm
