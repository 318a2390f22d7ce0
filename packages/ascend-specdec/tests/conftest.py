"""Every test runs on one thread and with fresh memory filled with NaN."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ascend_ops_core.testing import strict_environment


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    with strict_environment():
        yield
