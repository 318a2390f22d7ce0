"""Finding calls in sources."""

from __future__ import annotations

from pathlib import Path

import pytest
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing.contract import SourceCall, calls_in_sources

pytestmark = pytest.mark.contract


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "calling_package"
    (folder / "ops" / "npu").mkdir(parents=True)
    for one in (folder, folder / "ops"):
        (one / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_calls_in_modules_named_npu_are_found(package: Path) -> None:
    (package / "npu.py").write_text(
        "import torch\n"
        "def f(x):\n"
        "    y = torch.ops.npu.npu_swiglu(x)\n"
        "    return torch.ops.npu.npu_format_cast.Tensor(y, x), torch.ops.npu.npu_gelu.default(x)\n"
    )
    (package / "ops" / "npu" / "norm.py").write_text("import torch\ntorch.ops.npu.npu_rms_norm\n")
    (package / "ops" / "other.py").write_text("import torch\ntorch.ops.npu.npu_unseen\n")
    assert calls_in_sources("calling_package") == [
        SourceCall("npu_swiglu", "calling_package.npu", 3),
        SourceCall("npu_format_cast.Tensor", "calling_package.npu", 4),
        SourceCall("npu_gelu", "calling_package.npu", 4),
        SourceCall("npu_rms_norm", "calling_package.ops.npu.norm", 2),
    ]


def test_a_call_that_cannot_be_followed_is_refused(package: Path) -> None:
    (package / "npu.py").write_text("import torch\nspace = torch.ops.npu\n")
    with pytest.raises(InvalidInputError, match=r"calling_package\.npu:2"):
        calls_in_sources("calling_package")


def test_an_unknown_package_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="cannot be found"):
        calls_in_sources("no_such_package")
