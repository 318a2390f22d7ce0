from __future__ import annotations

import re

from ascend_ops_core.testing.contract import SUPPORTED_WHEELS
from ascend_ops_core.testing.contract.wheel import NEEDED_FILES

from tools import torch_npu_wheels


def test_the_pinned_versions_are_the_supported_ones() -> None:
    assert tuple(torch_npu_wheels.pins().sha256) == SUPPORTED_WHEELS
    assert torch_npu_wheels.DEFAULT in SUPPORTED_WHEELS


def test_the_kept_files_are_those_that_are_read() -> None:
    assert sorted(torch_npu_wheels.pins().files) == sorted(NEEDED_FILES)


def test_every_pin_is_a_sha256() -> None:
    assert all(re.fullmatch("[0-9a-f]{64}", one) for one in torch_npu_wheels.pins().sha256.values())
