"""The packages agree with the layering and with each other."""

import ast
import tomllib

import pytest

from tools.workspace import ROOT, Package, packages, with_dependants, with_lower

LAYERS = [
    {"ascend-ops-core"},
    {"ascend-fused-moe", "ascend-attention"},
    {"ascend-models-deepseek", "ascend-models-minimax", "ascend-models-kimi"},
    {"ascend-specdec"},
    {"ascend-vllm-plugin"},
]
KERNELS = LAYERS[0] | LAYERS[1]

every_package = pytest.mark.parametrize("package", packages().values(), ids=lambda p: p.name)


def _project(package: Package) -> dict[str, object]:
    project: dict[str, object] = tomllib.loads((package.directory / "pyproject.toml").read_text())[
        "project"
    ]
    return project


def test_the_packages_are_those_of_the_layers() -> None:
    assert set(packages()) == set().union(*LAYERS)


@every_package
def test_a_package_depends_on_lower_layers_only(package: Package) -> None:
    level = next(i for i, layer in enumerate(LAYERS) if package.name in layer)
    assert package.depends <= set().union(*LAYERS[:level])


@every_package
def test_the_version_is_the_same_in_code_and_metadata(package: Package) -> None:
    init = package.directory / "src" / package.import_name / "__init__.py"
    found = [
        ast.literal_eval(node.value)
        for node in ast.parse(init.read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__"
    ]
    assert found == [_project(package)["version"]]


@every_package
def test_the_house_is_complete(package: Package) -> None:
    for name in ("README.md", "CHANGELOG.md", "LICENSE", "tests"):
        assert (package.directory / name).exists(), name
    licence = (package.directory / "LICENSE").read_bytes()
    assert licence == (ROOT / "LICENSE").read_bytes()


@every_package
def test_the_extras_are_those_of_the_layer(package: Package) -> None:
    wanted = {"cpu-kernels", "test"} if package.name in KERNELS else {"cpu", "npu", "test"}
    if package.name in LAYERS[0]:
        wanted |= {"compile"}
    assert package.extras == wanted


@every_package
def test_kernel_packages_depend_on_torch_only(package: Package) -> None:
    third_party = [
        text
        for text in _project(package)["dependencies"]  # type: ignore[attr-defined]
        if not text.startswith("ascend-")
    ]
    if package.name in KERNELS:
        assert third_party == ["torch>=2.13,<2.14"]


def test_lower_and_dependants_follow_the_whole_chain() -> None:
    lower = [package.name for package in with_lower("ascend-models-kimi")]
    assert lower[0] == "ascend-ops-core"
    assert lower[-1] == "ascend-models-kimi"
    assert set(lower) == KERNELS | {"ascend-models-kimi"}
    assert {package.name for package in with_dependants(["ascend-ops-core"])} == set(packages())
    above = [package.name for package in with_dependants(["ascend-specdec"])]
    assert above == ["ascend-specdec", "ascend-vllm-plugin"]
