"""Every test runs on one thread and with fresh memory filled with NaN."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ascend_ops_core.testing import strict_environment
from hypothesis import settings

# The first example compiles kernels, and a busy machine stalls any of them.
settings.register_profile("ascend", deadline=None)
settings.load_profile("ascend")


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    with strict_environment():
        yield
