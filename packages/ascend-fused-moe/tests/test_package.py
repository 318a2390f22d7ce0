"""What importing ascend_fused_moe promises."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import ascend_fused_moe
import pytest
from ascend_fused_moe.ops import experts, routing
from ascend_ops_core.testing import assert_close, run_python

OTHERS = ["numba", "triton", "vllm", "transformers", "hypothesis", "numpy"]


def test_public_names() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert ascend_fused_moe.__version__ == project["version"]
    assert ascend_fused_moe.__all__ == ["__version__"]
    assert routing.__all__ == ["SCORING_FUNCTIONS", "hash_routing", "topk_routing"]
    assert routing.SCORING_FUNCTIONS == ("sqrtsoftplus", "sigmoid", "softmax")
    assert experts.__all__ == ["fused_experts"]


def test_everything_but_the_kernels_works_on_bare_torch() -> None:
    import torch
    from ascend_fused_moe.ops.experts import fused_experts

    code = """
        import importlib, pkgutil
        import ascend_fused_moe
        for module in pkgutil.walk_packages(ascend_fused_moe.__path__, "ascend_fused_moe."):
            parts = module.name.split(".")
            if not {"vllm", "kernels"} & set(parts) and not parts[-1].startswith("cpu"):
                importlib.import_module(module.name)
        import torch
        from ascend_fused_moe.ops.experts import fused_experts
        given = torch.arange(1.0, 5), torch.arange(8.0) / 8, torch.arange(4.0)
        x, w13, w2 = given[0].view(2, 2), given[1].view(2, 2, 2), given[2].view(2, 2, 1)
        ids = torch.tensor([[0], [1]])
        print(fused_experts(x, w13, w2, torch.ones(2, 1), ids).flatten().tolist())
    """
    without = torch.tensor(eval(run_python(code, missing=OTHERS))).view(2, 2)
    given = torch.arange(1.0, 5), torch.arange(8.0) / 8, torch.arange(4.0)
    x, w13, w2 = given[0].view(2, 2), given[1].view(2, 2, 2), given[2].view(2, 2, 1)
    ids = torch.tensor([[0], [1]])
    assert_close(fused_experts(x, w13, w2, torch.ones(2, 1), ids), without, scale=10)


@pytest.mark.parametrize("place", [0, 1, 2], ids=["layer", "operators", "balancing"])
def test_what_the_readme_shows_runs_on_bare_torch(place: int) -> None:
    """Each example by itself, where nothing but torch is installed."""
    text = (Path(__file__).parents[1] / "README.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 3
    printed = run_python(examples[place], missing=OTHERS)
    assert printed.startswith(("torch.Size([5, 32])", "torch.Size([5, 32])", "0")[place])
