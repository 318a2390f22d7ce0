"""What importing ascend_ops_core promises."""

from __future__ import annotations

import tomllib
from pathlib import Path

import ascend_ops_core
from ascend_ops_core import InvalidInputError
from ascend_ops_core.testing import run_python


def test_public_names() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert ascend_ops_core.__version__ == project["version"]
    assert ascend_ops_core.__all__ == ["InvalidInputError", "__version__"]
    for family, names in {
        "activation": ["silu_and_mul_with_clamp"],
        "conv3d": ["conv3d"],
        "embedding": ["mask_vocab_range"],
        "hyper_connection": ["HyperConnectionPlan", "hc_head", "hc_post", "hc_pre"],
        "linear": ["grouped_linear", "linear", "to_nz", "unquantized_gemm"],
        "norm": ["rms_norm"],
        "rotary": [
            "YarnScaling",
            "apply_rotary",
            "rms_norm_rotary",
            "rotary_dim_of",
            "rotary_frequencies",
        ],
    }.items():
        module = __import__(f"ascend_ops_core.ops.{family}", fromlist=["__all__"])
        assert module.__all__ == names
        assert all(getattr(module, name).__doc__ for name in names)


def test_everything_but_the_kernels_imports_on_bare_torch() -> None:
    code = """
        import importlib, pkgutil, sys
        import ascend_ops_core
        for module in pkgutil.walk_packages(ascend_ops_core.__path__, "ascend_ops_core."):
            if not module.name.rsplit(".", 1)[1].startswith("cpu") or "cpu_kernels" in module.name:
                importlib.import_module(module.name)
        print({"numba", "vllm", "transformers"} & sys.modules.keys())
    """
    assert run_python(code, missing=["numba", "vllm", "transformers", "hypothesis"]) == "set()"


def test_importing_operators_does_not_import_numba() -> None:
    code = (
        "import sys, ascend_ops_core.ops.norm as n; print('numba' in sys.modules, n._cpu._module)"
    )
    assert run_python(code) == "False None"


def test_errors_carry_value_limit_and_remedy() -> None:
    error = InvalidInputError("size=3", "it must be even", "Use 2 or 4.")
    assert (error.value, error.limit, error.remedy) == ("size=3", "it must be even", "Use 2 or 4.")
    assert str(error) == "size=3: it must be even. Use 2 or 4."
    assert isinstance(error, ValueError)
