"""Programs on the simulated NPU: torch_npu's operators, Triton kernels, a small model, a script."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_ops_core.devices import device_family
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.launch import Launch
from ascend_ops_core.testing import assert_close
from ascend_ops_core.testing.contract import installed
from ascend_ops_core.testing.simulated_npu import counters
from ascend_ops_core.testing.simulated_npu.launches import execute
from torch.nn import functional as F

pytestmark = pytest.mark.sim


def test_an_operator_of_torch_npu_is_checked_and_computed() -> None:
    contract = installed()
    assert contract is not None
    x, gamma = torch.randn(3, 64), torch.randn(64)
    contract.calls.clear()
    y, rstd = torch.ops.npu.npu_rms_norm(x.npu(), gamma.npu(), 1e-6)
    assert y.device.type == rstd.device.type == "npu"
    assert torch.allclose(y.cpu(), F.rms_norm(x, (64,), gamma, 1e-6), atol=1e-6)
    assert [call.op for call in contract.calls] == ["npu_rms_norm"]


def test_an_operator_of_torch_npu_writes_in_place() -> None:
    cache = torch.zeros(4, 8, device="npu")
    rows = torch.ones(2, 8, device="npu")
    index = torch.tensor([[3], [1]], device="npu")
    assert torch.ops.npu.npu_scatter_nd_update_(cache, index, rows) is cache
    assert cache.sum(1).tolist() == [0, 8, 0, 8]


def test_limits_forms_and_devices_are_refused() -> None:
    x = torch.zeros(2, 8, dtype=torch.int8, device="npu")
    with pytest.raises(InvalidInputError, match=r"self of torch\.int8"):
        torch.ops.npu.npu_rms_norm(x, x[0])
    with pytest.raises(RuntimeError, match="device"):
        torch.ops.npu.npu_rms_norm(x.float(), torch.zeros(8))
    with pytest.raises(NotImplementedError, match="no reference"):
        torch.ops.npu.npu_linear(x.float(), x.float())
    with device_family("A2"), pytest.raises(InvalidInputError, match="exists on A5"):
        torch.ops.npu.npu_mhc_sinkhorn(torch.zeros(2, 4, 4, device="npu"))


class _Kernel:
    """Takes the place of a ``@triton.jit`` function."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(**arguments: Any) -> None:
            assert arguments["x"].device.type == "cpu"
            arguments["x"].fill_(grid[0] * arguments["FACTOR"])

        return run


def test_a_launch_works_on_the_memory_of_the_device() -> None:
    x = torch.zeros(3, device="npu")
    before = counters()
    execute(Launch(_Kernel(), 2, {"x": x}, {"FACTOR": 5}))
    assert x.tolist() == [10, 10, 10]
    assert (counters() - before).launches == 1
    with pytest.raises(InvalidInputError, match="argument x on cpu"):
        execute(Launch(_Kernel(), 2, {"x": torch.zeros(3)}, {"FACTOR": 5}))


class _Model(torch.nn.Module):
    """Two layers of attention over a paged cache, one token at a time."""

    def __init__(self, blocks: int, block: int, heads: int, size: int) -> None:
        super().__init__()
        width = heads * size
        self.embedding = torch.nn.Embedding(97, width)
        self.qkv = torch.nn.ModuleList(torch.nn.Linear(width, 3 * width) for _ in range(2))
        self.mlp = torch.nn.ModuleList(torch.nn.Linear(width, 2 * width) for _ in range(2))
        self.out = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(2))
        self.head = torch.nn.Linear(width, 97)
        self.shape = (heads, size)
        self.register_buffer("cache", torch.zeros(2, 2, blocks * block, heads, size))

    def forward(self, token: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        x = self.embedding(token)
        for i in range(2):
            q, k, v = self.qkv[i](F.layer_norm(x, x.shape)).view(3, *self.shape)
            self.cache[i, 0].index_copy_(0, slots[-1:], k[None])
            self.cache[i, 1].index_copy_(0, slots[-1:], v[None])
            keys, values = self.cache[i, 0][slots], self.cache[i, 1][slots]
            scores = torch.einsum("hd,thd->ht", q, keys) / self.shape[1] ** 0.5
            x = x + torch.einsum("ht,thd->hd", scores.softmax(-1), values).flatten()
            a, b = self.mlp[i](F.layer_norm(x, x.shape)).chunk(2)
            x = x + self.out[i](F.silu(a) * b)
        return self.head(x)


def _generate(device: str) -> tuple[list[int], torch.Tensor]:
    torch.manual_seed(7)
    model = _Model(4, 8, 4, 16).to(device)
    order = torch.randperm(32, generator=torch.Generator().manual_seed(1)).to(device)
    token, tokens = torch.tensor(5).to(device), []
    with torch.inference_mode():
        for step in range(20):
            logits = model(token, order[: step + 1])
            token = logits.argmax()
            tokens.append(token)
    return [int(one) for one in tokens], model.cache.cpu()


def test_a_model_with_a_cache_gives_the_cpu_s_tokens() -> None:
    on_cpu, cache = _generate("cpu")
    on_npu, other = _generate("npu")
    assert on_cpu == on_npu
    assert len(set(on_cpu)) > 1
    # A linear layer with bias is one kernel on a CPU and two operators on another device.
    assert_close(other, cache)


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ascend_ops_core.testing.simulated_npu", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_script_and_the_processes_that_it_starts(tmp_path: Path) -> None:
    child = (
        "from ascend_ops_core.testing import simulated_npu as s; import torch; "
        "assert s.install_from_environment(); print(torch.npu.device_count(), s.kernels_mode())"
    )
    script = tmp_path / "script.py"
    script.write_text(
        "import subprocess, sys, torch\n"
        "print(torch.npu.device_count(), torch.npu.get_device_name(), sys.argv[1:], flush=True)\n"
        f"subprocess.run([sys.executable, '-c', {child!r}], check=True)\n"
    )
    done = _run("--family", "A5", "--devices", "3", "--kernels", "reference", str(script), "--x")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["3 Ascend950PR_957c ['--x']", "3 reference"]


def test_operators_run_their_definition_where_kernels_do_not(tmp_path: Path) -> None:
    """In place and out of place; a launch that is no operator's is still refused."""
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "from ascend_ops_core import InvalidInputError\n"
        "from ascend_ops_core.launch import launch\n"
        "from ascend_ops_core.ops.hadamard import hadamard\n"
        "from ascend_ops_core.ops.slot_mapping import compute_slot_mapping\n"
        "from ascend_ops_core.testing.simulated_npu import counters\n"
        "x = torch.eye(4, device='npu')\n"
        "y = hadamard(x, block=4, scale=1.0)\n"
        "print(y.device, y[1].tolist())\n"
        "slots = torch.full((4,), 7, device='npu')\n"
        "start = torch.tensor([0, 3], dtype=torch.int32, device='npu')\n"
        "table = torch.tensor([[5, 6]], dtype=torch.int32, device='npu')\n"
        "compute_slot_mapping(slots, start, torch.arange(3, device='npu'), table, 2)\n"
        "print(slots.tolist(), counters().launches)\n"
        "try:\n"
        "    launch(None, 1, {}, {})\n"
        "except InvalidInputError as error:\n"
        "    print('refused')\n"
    )
    done = _run("--kernels", "reference", str(script))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "npu:0 [1.0, -1.0, 1.0, -1.0]",
        "[10, 11, 12, -1] 0",
        "refused",
    ]
    assert done.stderr.count("run their definition in torch instead") == 1


def test_an_unknown_family_is_refused(tmp_path: Path) -> None:
    done = _run("--family", "A9", str(tmp_path / "absent.py"))
    assert done.returncode == 1
    assert "known are" in done.stderr


def test_importing_changes_nothing() -> None:
    program = (
        "import torch; before = (torch.empty, torch.Generator, torch.accelerator.synchronize)\n"
        "from ascend_ops_core.testing import simulated_npu as s\n"
        "assert not s.install_from_environment() and not s.installed()\n"
        "assert before == (torch.empty, torch.Generator, torch.accelerator.synchronize)\n"
        "assert s.kernels_mode() is None\n"
    )
    variables = {k: v for k, v in os.environ.items() if k != "ASCEND_SIMULATED_NPU"}
    subprocess.run([sys.executable, "-c", program], check=True, env=variables)
