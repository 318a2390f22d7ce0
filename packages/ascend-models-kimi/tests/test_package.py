"""What importing the package costs: neither torch nor vLLM."""

import subprocess
import sys
from importlib.metadata import version

import ascend_models_kimi


def test_the_version_is_that_of_the_distribution() -> None:
    assert ascend_models_kimi.__version__ == version("ascend-models-kimi")


def test_importing_it_loads_neither_vllm_nor_torch() -> None:
    code = "import sys, ascend_models_kimi; print(sorted({'torch', 'vllm'} & sys.modules.keys()))"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_configs_and_checkpoints_need_no_vllm() -> None:
    code = "import sys, ascend_models_kimi.kimi_linear.weights; print('vllm' in sys.modules)"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "False"
