"""Every Python example that a README or a documentation page shows runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PACKAGES = sorted((ROOT / "packages").glob("*/README.md"))
EXAMPLES = [
    pytest.param(block, id=f"{page.parent.name}-{i}")
    for page in _PACKAGES
    for i, block in enumerate(_BLOCK.findall(page.read_text()))
]


def test_the_kernel_packages_show_an_example() -> None:
    """Guards against a pattern that matches nothing."""
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs(example: str) -> None:
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
