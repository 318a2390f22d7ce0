"""What the still empty package promises: a version, no names, no vLLM."""

import subprocess
import sys
from importlib.metadata import version

import ascend_models_minimax


def test_the_version_is_that_of_the_distribution() -> None:
    assert ascend_models_minimax.__version__ == version("ascend-models-minimax")


def test_nothing_is_exported() -> None:
    assert [name for name in vars(ascend_models_minimax) if not name.startswith("_")] == []


def test_importing_it_loads_neither_vllm_nor_torch() -> None:
    code = (
        "import sys, ascend_models_minimax; print(sorted({'torch', 'vllm'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
