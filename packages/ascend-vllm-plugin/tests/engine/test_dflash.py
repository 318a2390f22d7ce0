"""DFlash drafts with random weights on a CPU: every number of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from .block_drafts import check_widths

pytestmark = pytest.mark.engine


def test_one_to_seven(in_process: None, tmp_path: Path) -> None:
    check_widths("dflash", tmp_path)
