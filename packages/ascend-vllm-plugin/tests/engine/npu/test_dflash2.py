"""Trained DFlash2 drafts on the simulated NPU: every number of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..block_drafts import check_widths

pytestmark = pytest.mark.engine_npu


def test_one_to_seven(in_process: None, tmp_path: Path) -> None:
    check_widths("dflash2", tmp_path)
