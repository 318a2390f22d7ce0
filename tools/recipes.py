"""Recipes: how a published model would be deployed, as data that the planner agrees with.

A file of ``docs/recipes`` describes one model. A person writes its settings; what follows from
them, the command and the memory of a card, is written by ``tools/recipes_page.py``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# torch imports torch_npu by itself where it is installed, and a plan needs no NPU.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

from ascend_ops_core.errors import InvalidInputError
from ascend_vllm_plugin.planning.advice import refusal
from ascend_vllm_plugin.planning.hccl import DEFAULT_MIB, VARIABLE
from ascend_vllm_plugin.planning.plan import Plan, make_plan
from ascend_vllm_plugin.planning.report import segments
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.source import ModelSource, read_model
from ascend_vllm_plugin.planning.weights import Layout

from tools.workspace import ROOT

FOLDER = ROOT / "docs" / "recipes"
SHAPES = ROOT / "packages" / "ascend-vllm-plugin" / "tests" / "data"
GIB = 1024**3


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Memory(_Strict):
    """GiB of the fullest card, by the planner; nothing of it is measured.

    Attributes:
        weights: with rotary tables.
        working: activations, step buffers, graphs and HCCL's buffers.
        caches: what is left for them within ``gpu_memory_utilization``.
        card: all of the card.
        longest_context: tokens of the longest requests that fit with the same concurrency.
        shortest_shared_prefix: tokens that two prompts must share for the prefix cache to hit.
    """

    weights: float
    working: float
    caches: float
    card: float
    longest_context: int
    shortest_shared_prefix: int


class Deployment(_Strict):
    """One way to serve a model.

    Attributes:
        name: what tells it from the others, in a few words.
        device: device family.
        memory_gib: memory of a card; needed where no document settles it.
        weight_format: how matrices are stored; ``stored`` as the config describes them.
        tensor_parallel: cards that split every layer.
        data_parallel: replicas.
        expert_parallel: whether the experts are shared out over all cards.
        max_model_len: tokens of a request.
        concurrency: requests of that length at once, over all replicas.
        max_num_seqs: requests of a step.
        max_num_batched_tokens: tokens of a step.
        speculative_tokens: tokens that MTP drafts in a step.
        prefix_caching: asked for, as models with recurrent states need it; others have it anyway.
        gpu_memory_utilization: share of a card that vLLM may use.
        hccl_buffsize: HCCL's buffer in MiB.
        why: when to choose it.
        command: written by the tool.
        memory: written by the tool.
    """

    name: str = Field(min_length=1)
    device: Literal["A2", "A3", "A5"]
    memory_gib: float | None = Field(default=None, gt=0)
    weight_format: Literal["model", "fp8", "fp8-mxfp4", "w8a8", "stored"]
    tensor_parallel: int = Field(default=1, ge=1)
    data_parallel: int = Field(default=1, ge=1)
    expert_parallel: bool = False
    max_model_len: int = Field(ge=1)
    concurrency: int = Field(default=1, ge=1)
    max_num_seqs: int = Field(default=128, ge=1)
    max_num_batched_tokens: int = Field(default=2048, ge=1)
    speculative_tokens: int = Field(default=0, ge=0)
    prefix_caching: bool = False
    gpu_memory_utilization: float = Field(default=0.92, gt=0, le=1)
    hccl_buffsize: int = Field(default=DEFAULT_MIB, ge=1)
    why: str = Field(min_length=1)
    command: str | None = None
    memory: Memory | None = None

    @property
    def cards(self) -> int:
        """Devices in all."""
        return self.tensor_parallel * self.data_parallel

    @property
    def request(self) -> PlanRequest:
        """What the planner is asked."""
        return PlanRequest(
            self.device,
            Layout(
                self.tensor_parallel, self.data_parallel, self.cards if self.expert_parallel else 1
            ),
            max_model_len=self.max_model_len,
            concurrency=self.concurrency,
            weight_format=self.weight_format,
            memory_bytes=None if self.memory_gib is None else int(self.memory_gib * GIB),
            gpu_memory_utilization=self.gpu_memory_utilization,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            speculative_tokens=self.speculative_tokens,
            prefix_caching=self.prefix_caching,
            hccl_buffer_mib=self.hccl_buffsize,
        )

    def arguments(self) -> list[str]:
        """Arguments of ``vllm serve``."""
        numbers = {
            "tensor-parallel-size": self.tensor_parallel,
            "data-parallel-size": self.data_parallel,
            "max-model-len": self.max_model_len,
            "max-num-seqs": self.max_num_seqs,
            "max-num-batched-tokens": self.max_num_batched_tokens,
            "gpu-memory-utilization": self.gpu_memory_utilization,
        }
        given = ["MODEL_DIR"]
        for name, value in numbers.items():
            if name != "data-parallel-size" or value != 1:
                given += [f"--{name}", str(value)]
        if self.expert_parallel:
            given.append("--enable-expert-parallel")
        if self.prefix_caching:
            given.append("--enable-prefix-caching")
        if self.speculative_tokens:
            drafts = {"method": "mtp", "num_speculative_tokens": self.speculative_tokens}
            given += ["--speculative-config", json.dumps(drafts)]
        return given


class Recipe(_Strict):
    """A file of ``docs/recipes``.

    Attributes:
        model: its published name.
        shape: file of the plugin's ``tests/data`` with the published config.
        status: what has been done with it.
        deployments: ways to serve it.
    """

    model: str = Field(min_length=1)
    shape: str
    status: Literal["planned, not run on hardware"]
    deployments: tuple[Deployment, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_differ(self) -> Recipe:
        names = [deployment.name for deployment in self.deployments]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"deployments of the same name: {', '.join(twice)}")
        return self

    @property
    def source(self) -> ModelSource:
        """What the planner reads."""
        return read_model(SHAPES / self.shape)


def read(file: Path) -> Recipe:
    """Read and check a recipe.

    Raises:
        InvalidInputError: not YAML, or not of this form; names every field that is wrong.
    """
    try:
        return Recipe.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (yaml.YAMLError, ValidationError) as error:
        raise InvalidInputError(
            f"recipe {file.name}", str(error), "Correct it; docs/recipes/schema.json has the form."
        ) from error


def planned(source: ModelSource, deployment: Deployment) -> Plan:
    """The plan of a deployment.

    Raises:
        InvalidInputError: it does not fit, or HCCL's buffer is smaller than the layout asks for.
    """
    plan = make_plan(source, deployment.request)
    if (refused := refusal(plan)) is not None:
        raise refused
    if plan.needed_hccl.mib > deployment.hccl_buffsize:
        raise InvalidInputError(
            f"hccl_buffsize={deployment.hccl_buffsize} of {deployment.name!r}",
            f"the layout asks for {plan.needed_hccl.mib} MiB ({plan.needed_hccl.how})",
            f"Set hccl_buffsize: {plan.needed_hccl.mib}.",
        )
    return plan


def completed(recipe: Recipe) -> Recipe:
    """The recipe with what follows from its settings.

    Raises:
        InvalidInputError: see :func:`planned`.
    """
    source = recipe.source
    deployments = [
        deployment.model_copy(
            update={
                "command": _command(deployment),
                "memory": _memory(planned(source, deployment)),
            }
        )
        for deployment in recipe.deployments
    ]
    return recipe.model_copy(update={"deployments": tuple(deployments)})


def text_of(recipe: Recipe) -> str:
    """The recipe as YAML; settings that have their default value are left out."""
    data = recipe.model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(data, sort_keys=False, width=110, allow_unicode=True)


def schema() -> dict[str, Any]:
    """The form of a recipe as a JSON schema."""
    return Recipe.model_json_schema()


def _command(deployment: Deployment) -> str:
    words = [f"'{word}'" if " " in word else word for word in deployment.arguments()]
    prefix = ""
    if deployment.hccl_buffsize != DEFAULT_MIB:
        prefix = f"{VARIABLE}={deployment.hccl_buffsize} "
    return f"{prefix}vllm serve {' '.join(words)}"


def _memory(plan: Plan) -> Memory:
    sizes = {"weights": 0, "estimate": 0, "caches": 0}
    for segment in segments(plan):
        if segment.kind in sizes:
            sizes[segment.kind] += segment.bytes
    return Memory(
        weights=round(sizes["weights"] / GIB, 2),
        working=round(sizes["estimate"] / GIB, 2),
        caches=round(sizes["caches"] / GIB, 2),
        card=round(plan.memory_bytes.bytes / GIB, 2),
        longest_context=plan.longest_context,
        shortest_shared_prefix=plan.pool.smallest_shared_prefix,
    )
