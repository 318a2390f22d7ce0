"""The import contracts of pyproject.toml refuse what they are there to refuse."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.workspace import ROOT, packages


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Eight empty packages under the contracts of the repository."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "import_contract.py", tmp_path / "tools")
    for package in packages().values():
        _write(tmp_path, f"{package.import_name}/__init__.py", "")
    return tmp_path


def _write(tree: Path, path: str, text: str) -> None:
    file = tree / path
    file.parent.mkdir(parents=True, exist_ok=True)
    for folder in file.relative_to(tree).parents:
        if folder != Path():
            (tree / folder / "__init__.py").touch()
    file.write_text(text)


def _lint(tree: Path) -> tuple[bool, str]:
    program = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run(
        [str(program), "--no-cache"], cwd=tree, capture_output=True, text=True, check=False
    )
    assert "Contracts:" in done.stdout, done.stdout + done.stderr
    return done.returncode == 0, done.stdout


ALLOWED = [
    ("ascend_attention/vllm/backend.py", "import vllm.config"),
    ("ascend_models_deepseek/model.py", "import vllm\nimport ascend_attention.vllm"),
    ("ascend_vllm_plugin/platform.py", "import vllm"),
    ("ascend_ops_core/ops/norm/npu.py", "import torch_npu"),
    ("ascend_ops_core/ops/norm/kernels.py", "import triton.language"),
    ("ascend_ops_core/ops/norm/cpu.py", "from numba import njit"),
    ("ascend_ops_core/cpu_threads.py", "import numba"),
    ("ascend_fused_moe/layer.py", "import ascend_ops_core"),
]
REFUSED = [
    ("ascend_attention/layers/dsa.py", "import vllm.config"),
    ("ascend_ops_core/ops/norm/reference.py", "def f():\n    import vllm"),
    ("ascend_attention/layers/dsa.py", "from ascend_attention.vllm import backend"),
    ("ascend_ops_core/ops/norm/reference.py", "import torch_npu"),
    ("ascend_vllm_plugin/platform.py", "import torch_npu"),
    ("ascend_ops_core/ops/norm/npu.py", "import triton"),
    ("ascend_ops_core/ops/norm/reference.py", "import numba"),
    ("ascend_attention/ops/sparse/reference.py", "import ascend_fused_moe"),
    ("ascend_models_kimi/model.py", "import ascend_models_minimax"),
    ("ascend_ops_core/device.py", "import ascend_attention"),
]


def test_what_the_contracts_allow_passes(tree: Path) -> None:
    _write(tree, "ascend_attention/vllm/backend.py", "")
    for path, text in ALLOWED:
        _write(tree, path, text)
    kept, shown = _lint(tree)
    assert kept, shown


@pytest.mark.parametrize(("path", "text"), REFUSED)
def test_what_they_forbid_is_named(tree: Path, path: str, text: str) -> None:
    _write(tree, "ascend_attention/vllm/backend.py", "")
    _write(tree, path, text)
    kept, shown = _lint(tree)
    assert not kept
    module = path.removesuffix(".py").replace("/", ".")
    assert module in shown
