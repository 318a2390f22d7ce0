"""`ascend-vllm demo`, whole: the packaged checkpoint, the real vLLM, a server of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ascend_vllm_plugin.cli.demo import DEFAULT_PROMPT

pytestmark = pytest.mark.serve

MAX_TOKENS = 96


def test_the_demo_writes_text_and_leaves_nothing_running(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    arguments = ["demo", "--max-tokens", str(MAX_TOKENS), "--log", str(log)]
    done = subprocess.run(
        [sys.executable, "-c", "from ascend_vllm_plugin.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=420,
    )
    output = done.stdout
    assert done.returncode == 0, output + done.stderr

    story = output.partition(DEFAULT_PROMPT)[2].partition("\nSpeed: ")[0]
    words = re.findall(r"[A-Za-z]+", story)
    assert len(words) >= 20, story
    assert len(set(words)) >= 10, story
    tokens = re.search(r"Speed: (\d+) tokens.*then ([\d.]+) tokens/s", output)
    assert tokens is not None, output
    assert 1 < int(tokens[1]) <= MAX_TOKENS
    speculation = re.search(r"Speculation: (\d+) of (\d+) draft tokens accepted", output)
    assert speculation is not None, output
    assert 0 < int(speculation[1]) <= int(speculation[2])
    assert "Everything ran on this machine's CPU" in output
    assert "no NPU was used" in output

    server = re.search(r"\(APIServer pid=(\d+)\)", log.read_text())
    assert server is not None
    with pytest.raises(ProcessLookupError):
        os.killpg(int(server[1]), 0)
