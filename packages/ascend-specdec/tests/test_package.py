"""What the package promises: its version, and kernels without vLLM."""

import subprocess
import sys
from importlib.metadata import version

import ascend_specdec


def test_the_version_is_that_of_the_distribution() -> None:
    assert ascend_specdec.__version__ == version("ascend-specdec")


def test_the_operators_load_neither_vllm_nor_triton() -> None:
    code = (
        "import ascend_specdec.ops.verification, sys; "
        "print({'vllm', 'triton', 'torch_npu'} & sys.modules.keys())"
    )
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "set()"
