"""What importing ascend_attention promises."""

from __future__ import annotations

import tomllib
from pathlib import Path

import ascend_attention
import pytest
from ascend_attention.ops import compressor, indexer, paged_rows, sparse_attention
from ascend_ops_core.testing import run_python

OTHERS = ["numba", "vllm", "transformers", "hypothesis", "numpy", "triton"]


def test_public_names() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert ascend_attention.__version__ == project["version"]
    assert ascend_attention.__all__ == ["__version__"]
    assert compressor.__all__ == ["compress_paged_windows", "compress_windows", "project_states"]
    assert indexer.__all__ == ["indexer_scores", "quantize_index_rows", "select_entries"]
    assert paged_rows.__all__ == ["RowIndex", "gather_rows", "locate_rows", "write_rows"]
    assert sparse_attention.__all__ == ["RowSource", "sparse_attention"]


def test_everything_but_adaptors_and_kernels_works_on_bare_torch() -> None:
    code = """
        import importlib, pkgutil, warnings
        warnings.simplefilter("ignore")
        import ascend_attention
        for module in pkgutil.walk_packages(ascend_attention.__path__, "ascend_attention."):
            parts = module.name.split(".")
            if not ({"vllm", "kernels"} & set(parts) or parts[-1].startswith("cpu")):
                importlib.import_module(module.name)
        import torch
        from ascend_attention.ops.indexer import select_entries
        from ascend_attention.step import StepLayout
        layout = StepLayout.build([0, 8], [8])
        keys = torch.ones(1, 2, 4)
        query = torch.ones(8, 1, 4)
        heads, table = torch.ones(8, 1), torch.zeros(1, 1).long()
        picked = select_entries(query, heads, keys, table, layout, 4, 1)
        print(picked.flatten().clamp(max=0).tolist())
    """
    assert run_python(code, missing=OTHERS) == str([-1, -1, -1, 0, 0, 0, 0, 0])


def test_the_adaptors_need_vllm() -> None:
    with pytest.raises(AssertionError, match="No module named 'vllm'"):
        run_python("import ascend_attention.vllm.dsa", missing=["vllm"])
