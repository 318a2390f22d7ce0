"""What importing ascend_ops_core promises."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import tomllib
from pathlib import Path

import ascend_ops_core
from ascend_ops_core import InvalidInputError, ops
from ascend_ops_core.testing import run_python


def test_public_names() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert ascend_ops_core.__version__ == project["version"]
    assert ascend_ops_core.__all__ == ["InvalidInputError", "__version__"]


def test_every_family_says_what_is_public_and_the_readme_lists_it() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    families = [one.name for one in pkgutil.iter_modules(ops.__path__)]
    assert len(families) > 15
    for family in families:
        module = importlib.import_module(f"{ops.__name__}.{family}")
        assert module.__all__
        for name in module.__all__:
            public = getattr(module, name)
            if callable(public):
                assert public.__doc__, name
            if inspect.isfunction(public):
                assert f"`{name}`" in readme, f"{family}.{name} is not in the README"


def test_everything_but_the_kernels_imports_on_bare_torch() -> None:
    code = """
        import importlib, pkgutil, sys
        import ascend_ops_core
        for module in pkgutil.walk_packages(ascend_ops_core.__path__, "ascend_ops_core."):
            parts = module.name.split(".")
            optional = parts[-1].startswith("cpu") and parts[-1] != "cpu_kernels"
            if not optional and not {"kernels", "vllm", "plugin"} & set(parts[1:]):
                if parts[-1] != "__main__":
                    importlib.import_module(module.name)
        print({"numba", "vllm", "transformers", "triton"} & sys.modules.keys())
    """
    missing = ["numba", "vllm", "transformers", "hypothesis", "triton", "pytest", "numpy"]
    assert run_python(code, missing=missing) == "set()"


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
