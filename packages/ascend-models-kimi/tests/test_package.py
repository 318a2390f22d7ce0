"""What the still empty package promises: a version, no names, no vLLM."""

import subprocess
import sys
from importlib.metadata import version

import ascend_models_kimi


def test_the_version_is_that_of_the_distribution() -> None:
    assert ascend_models_kimi.__version__ == version("ascend-models-kimi")


def test_nothing_is_exported() -> None:
    assert [name for name in vars(ascend_models_kimi) if not name.startswith("_")] == []


def test_importing_it_loads_neither_vllm_nor_torch() -> None:
    code = "import ascend_models_kimi, sys; print({'torch', 'vllm'} & sys.modules.keys())"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "set()"
