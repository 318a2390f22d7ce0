"""Operators: declaration, dispatch, compiled graphs, choice of an implementation."""

from __future__ import annotations

import logging
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from ascend_ops_core import InvalidInputError
from ascend_ops_core.cases import Case, cases_of
from ascend_ops_core.devices import DeviceFacts, facts_of
from ascend_ops_core.launch import use_definitions
from ascend_ops_core.registry import Operator, declare, find, operators
from ascend_ops_core.support import SUPPORTED, Support, first_refusal, refuse

FAMILY = "ascend_registry_test.ops.scaling"


@pytest.fixture(scope="module")
def scale() -> Iterator[Operator]:
    """An operator of a made-up package: out = x * factor, three NPU implementations."""

    def module(name: str, **content: Any) -> None:
        one = types.ModuleType(name)
        one.__dict__.update(content)
        one.__path__ = []
        sys.modules[name] = one

    def supports(facts: DeviceFacts, x: torch.Tensor, factor: float) -> Support:
        return first_refusal((x.dtype == torch.float16, f"x of {x.dtype}, it takes float16"))

    def supports_triton(facts: DeviceFacts, x: torch.Tensor, factor: float) -> Support:
        return first_refusal((x.dim() == 2, f"{x.dim()} axes, it takes 2"))

    def call(x: torch.Tensor, factor: float) -> torch.Tensor:
        """Scale. And more."""
        return operator(x, factor)

    module("ascend_registry_test")
    module("ascend_registry_test.ops")
    module(FAMILY, scale=call)
    module(f"{FAMILY}.reference", scale=lambda x, factor: x * factor)
    module(
        f"{FAMILY}.npu",
        scale=lambda x, factor: x * factor + 100,
        supports_scale=supports,
        supports_scale_triton=supports_triton,
    )
    module(f"{FAMILY}.kernels", scale=lambda x, factor: x * factor + 200)
    module(f"{FAMILY}.cases", CASES={"scale": (Case("one", lambda new: (new.randn(2), 2.0)),)})
    operator = declare(
        FAMILY,
        "scale(Tensor x, float factor) -> Tensor",
        npu=("torch_npu", "triton", "torch"),
        fake=lambda x, factor: torch.empty_like(x),
    )
    yield operator
    for name in [name for name in sys.modules if name.startswith("ascend_registry_test")]:
        del sys.modules[name]


def test_it_is_found_described_and_registered(scale: Operator) -> None:
    assert operators("ascend_registry_test") == [scale]
    assert find("ascend_registry_test::scale") is scale
    assert scale.description == "Scale. And more."
    assert not scale.mutates
    x = torch.randn(3)
    assert torch.equal(torch.ops.ascend_registry_test.scale(x, 2.0), 2 * x)
    assert [case.name for case in cases_of(scale)] == ["one"]


def test_dispatch_by_device(scale: Operator) -> None:
    x = torch.randn(3)
    assert torch.equal(scale(x, 2.0), 2 * x)
    assert scale(x.to("meta"), 2.0).device.type == "meta"
    with torch._subclasses.FakeTensorMode() as mode:
        assert scale(mode.from_tensor(x), 2.0).shape == (3,)


def test_autograd_of_a_direct_call(scale: Operator) -> None:
    x = torch.randn(3, requires_grad=True)
    scale(x, 2.0).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((3,), 2.0))


def test_a_compiled_graph_sees_one_opaque_operator(scale: Operator) -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = torch.compile(lambda x: scale(x, 2.0) + 1, backend=backend, fullgraph=True)
    x = torch.randn(3)
    assert torch.equal(compiled(x), 2 * x + 1)
    targets = [node.target for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert scale.packet in targets


def test_opcheck_accepts_the_registration() -> None:
    torch.library.opcheck(find("ascend_ops_core::rms_norm").packet, (torch.randn(2, 8), None, 1e-6))


@pytest.mark.parametrize(
    ("x", "chosen", "refused"),
    [
        (torch.empty(2, 2, dtype=torch.float16), "torch_npu", ()),
        (torch.empty(2, 2), "triton", ("torch_npu",)),
        (torch.empty(2), "torch", ("torch_npu", "triton")),
    ],
)
def test_the_first_that_takes_the_input_is_chosen(
    scale: Operator, x: torch.Tensor, chosen: str, refused: tuple[str, ...]
) -> None:
    choice = scale.choose(facts_of("A2"), x, 2.0)
    assert choice.implementation == chosen
    assert tuple(name for name, _ in choice.refused) == refused
    assert not choice.forced


def test_a_family_without_triton(scale: Operator) -> None:
    choice = scale.choose(facts_of("310P"), torch.empty(2, 2), 2.0)
    assert choice.implementation == "torch"
    assert dict(choice.refused)["triton"] == "310P has no Triton compiler"


def test_bind_returns_the_implementation_itself(scale: Operator) -> None:
    call = scale.bind(facts_of("A2"), torch.empty(2, 2, device="meta"), 2.0)
    assert call is sys.modules[f"{FAMILY}.kernels"].scale  # type: ignore[attr-defined]


def test_definitions_take_the_place_of_kernels_where_those_cannot_run(scale: Operator) -> None:
    """Chosen as before; only what would launch a kernel goes to the runner."""
    seen = []

    def run(definition: Any, args: tuple[Any, ...]) -> Any:
        seen.append(definition)
        return definition(*args)

    x = torch.ones(2, 2)
    assert scale._on_npu(x, 2.0).tolist() == [[202, 202]] * 2
    use_definitions(run)
    try:
        assert scale._on_npu(x, 2.0).tolist() == [[2, 2]] * 2
        assert scale.bind(facts_of("A2"), x, 2.0)(x, 3.0).tolist() == [[3, 3]] * 2
        assert seen == [scale.reference] * 2
        assert scale._on_npu(x.half(), 2.0).tolist() == [[102, 102]] * 2
        assert len(seen) == 2
    finally:
        use_definitions(None)
    assert scale._on_npu(x, 2.0).tolist() == [[202, 202]] * 2


def test_a_slower_choice_is_logged_once(scale: Operator, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        scale.choose(facts_of("A5"), torch.empty(2, 3), 2.0)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == (
        "ascend_registry_test::scale on A5 runs as triton because "
        "torch_npu: x of torch.float32, it takes float16"
    )


def test_forced(scale: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_OPS", "other=triton, scale=torch")
    choice = scale.choose(facts_of("A2"), torch.empty(2, 2, dtype=torch.float16), 2.0)
    assert choice.implementation == "torch"
    assert choice.forced


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("scale", "not of the form"),
        ("scale=cuda", "scale has torch_npu, triton, torch, not 'cuda'"),
        ("scale=torch_npu", "x of torch.float32, it takes float16"),
    ],
)
def test_a_force_that_cannot_be(
    scale: Operator, monkeypatch: pytest.MonkeyPatch, setting: str, message: str
) -> None:
    monkeypatch.setenv("ASCEND_OPS", setting)
    with pytest.raises(InvalidInputError, match=message):
        scale.choose(facts_of("A2"), torch.empty(2, 2), 2.0)


def test_bad_declarations_and_names(scale: Operator) -> None:
    with pytest.raises(InvalidInputError, match="one or more of torch_npu"):
        declare(FAMILY, "f(Tensor x) -> Tensor", npu=("cuda",), fake=lambda x: x)
    with pytest.raises(InvalidInputError, match="one or more of torch_npu"):
        declare(FAMILY, "f(Tensor x) -> Tensor", npu=(), fake=lambda x: x)
    with pytest.raises(InvalidInputError, match="not declared"):
        find("ascend_registry_test::missing")
    with pytest.raises(InvalidInputError, match="it has torch_npu, triton, torch"):
        scale.call_of("cuda")
    with pytest.raises(InvalidInputError, match="without a tensor"):
        scale(1.0, 2.0)


def test_no_implementation_at_all(scale: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "npu", ("torch_npu", "triton"))
    with pytest.raises(InvalidInputError, match="no implementation takes these inputs") as error:
        scale.choose(facts_of("A2"), torch.empty(2), 2.0)
    assert "torch_npu: x of torch.float32" in error.value.limit
    assert "triton: 1 axes" in error.value.limit


def test_support_is_true_or_has_a_reason() -> None:
    assert SUPPORTED
    assert not refuse("too large")
    with pytest.raises(ValueError, match="needs a reason"):
        refuse("")


def test_cases_are_the_same_at_every_call_and_have_values_or_shapes_alone() -> None:
    for case in cases_of(find("ascend_ops_core::rms_norm")):
        shapes = case.arguments("meta")
        assert shapes[0].device.type == "meta"
        if not case.large:
            first, second = case.arguments(), case.arguments()
            assert torch.equal(first[0], second[0])
            assert first[0].shape == shapes[0].shape
            assert first[0].stride() == shapes[0].stride()
