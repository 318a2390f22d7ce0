"""The contract of the default wheel, for this process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ascend_ops_core.testing import contract as contract_mode


@pytest.fixture(scope="session")
def contract() -> contract_mode.Contract:
    """The operators of the wheel that ASCEND_TORCH_NPU_WHEEL names."""
    installed = contract_mode.install()
    installed.install_references()
    return installed


@pytest.fixture(scope="session")
def wheels() -> Path:
    """Folder with one unpacked wheel for each supported version."""
    return Path(os.environ["ASCEND_TORCH_NPU_WHEELS"])
