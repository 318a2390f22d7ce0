"""vLLM's own layer of experts with our router and method, against a loop over tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_fused_moe.routers import AscendHashRouter, create_ascend_fused_moe_router
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing import assert_close

pytestmark = pytest.mark.engine

EXPERTS, TOP_K, HIDDEN, INTER, VOCABULARY = 5, 2, 16, 12, 30


def brute_force(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    limit: float | None = None,
) -> torch.Tensor:
    """One token and one choice after the other, in float64; an id below 0 is no choice."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for t, row in enumerate(ids.tolist()):
        for j, expert in enumerate(row):
            if expert < 0:
                continue
            gate, up = (w13[expert].double() @ x[t].double()).chunk(2)
            if limit:
                gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            hidden = gate * torch.sigmoid(gate) * up
            out[t] += weights[t, j].double() * (w2[expert].double() @ hidden)
    return out.to(x.dtype)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, type]:
    """What is registered on an NPU."""
    from ascend_fused_moe import vllm as adaptors
    from vllm.model_executor import custom_op
    from vllm.platforms import current_platform

    found: dict[str, type] = {}
    monkeypatch.setattr(custom_op, "op_registry_oot", found)
    adaptors.register()
    assert found == {}, "registered on a CPU"
    with monkeypatch.context() as on_npu:
        on_npu.setattr(type(current_platform), "device_type", "npu")
        adaptors.register()
        adaptors.register()
    return found


def test_registration(registry: dict[str, type], monkeypatch: pytest.MonkeyPatch) -> None:
    from ascend_fused_moe import vllm as adaptors
    from ascend_fused_moe.vllm.methods import VllmUnquantizedFusedMoEMethod
    from vllm.platforms import current_platform

    assert registry == {"UnquantizedFusedMoEMethod": VllmUnquantizedFusedMoEMethod}
    monkeypatch.setattr(type(current_platform), "device_type", "npu")
    registry["UnquantizedFusedMoEMethod"] = dict
    with pytest.raises(InvalidInputError, match="registered for it already"):
        adaptors.register()


@pytest.mark.parametrize("tokens", [0, 1, 23])
@pytest.mark.parametrize("kind", ["bias", "table"])
def test_a_layer_of_vllm(registry: dict[str, type], kind: str, tokens: int) -> None:
    """DeepSeek-V4's scores and its table, which vLLM's CPU experts do not know."""
    from ascend_fused_moe.vllm.router import VllmRouter, router_settings
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.forward_context import set_forward_context
    from vllm.model_executor.layers.fused_moe.layer import FusedMoEFactory

    generator = torch.Generator().manual_seed(tokens)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    names = {"n_routed_experts": EXPERTS, "num_experts_per_tok": TOP_K, "norm_topk_prob": True}
    names |= {"scoring_func": "sqrtsoftplus", "routed_scaling_factor": 1.5}
    table = torch.randint(0, EXPERTS, (VOCABULARY, TOP_K), generator=generator)
    ours = create_ascend_fused_moe_router(
        router_settings(SimpleNamespace(**names)),
        bias=random(EXPERTS) if kind == "bias" else None,
        table=table if kind == "table" else None,
    )
    assert isinstance(ours, AscendHashRouter) == (kind == "table")
    config = VllmConfig()
    with set_current_vllm_config(config):
        layer = FusedMoEFactory(
            EXPERTS,
            TOP_K,
            HIDDEN,
            INTER,
            params_dtype=torch.float32,
            tp_size=1,
            dp_size=1,
            pcp_size=1,
            prefix="model.layers.0.experts",
            router=VllmRouter(ours),
            swiglu_limit=2.0,
        )
    experts = layer.routed_experts
    assert type(experts.quant_method) is registry["UnquantizedFusedMoEMethod"]
    for weight in (experts.w13_weight, experts.w2_weight):
        weight.data.copy_(random(*weight.shape))
    experts.quant_method.process_weights_after_loading(experts)
    x, logits = random(tokens, HIDDEN), random(tokens, EXPERTS)
    ids = torch.randint(0, VOCABULARY, (tokens,), generator=generator)
    with set_forward_context(None, config), torch.inference_mode():
        out = layer(x, logits, input_ids=ids)
    score = torch.nn.functional.softplus(logits.double()).sqrt()
    biased = score + (0 if kind == "table" else ours.bias.double())  # type: ignore[attr-defined]
    chosen = table[ids] if kind == "table" else biased.topk(TOP_K, -1).indices
    weights = score.gather(1, chosen)
    weights = 1.5 * weights / weights.sum(-1, keepdim=True)
    expected = brute_force(x, experts.w13_weight, experts.w2_weight, weights, chosen, 2.0)
    assert_close(out, expected, scale=8)


def method_and_layer(**changes: Any) -> tuple[Any, Any]:
    from ascend_fused_moe.vllm.methods import VllmUnquantizedFusedMoEMethod
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    layer = SimpleNamespace(
        activation=MoEActivation.SILU,
        apply_router_weight_on_input=False,
        swiglu_limit=None,
        swiglu_alpha=None,
        swiglu_beta=None,
        expert_map=None,
    )
    vars(layer).update(changes)
    return VllmUnquantizedFusedMoEMethod.__new__(VllmUnquantizedFusedMoEMethod), layer


@pytest.mark.parametrize("tokens", [0, 1, 9])
@pytest.mark.parametrize("held", [(0, 2, 4), (3,)], ids=str)
def test_experts_of_a_rank(held: tuple[int, ...], tokens: int) -> None:
    """Others add nothing, nor does a choice that is none; memory of no expert may hold NaN."""
    generator = torch.Generator().manual_seed(tokens)
    w13 = torch.randn(EXPERTS, 2 * INTER, HIDDEN, generator=generator)
    w2 = torch.randn(EXPERTS, HIDDEN, INTER, generator=generator)
    x = torch.randn(tokens, HIDDEN, generator=generator)
    weights = torch.rand(tokens, TOP_K, generator=generator)
    ids = torch.randint(-1, EXPERTS, (tokens, TOP_K), generator=generator)
    places = torch.full((EXPERTS,), -1, dtype=torch.int32)
    places[list(held)] = torch.arange(len(held), dtype=torch.int32)
    method, layer = method_and_layer(
        expert_map=places, w13_weight=w13[list(held)], w2_weight=w2[list(held)]
    )
    out = method.apply(layer, x, weights, ids)
    own = torch.where(torch.isin(ids, torch.tensor(held)), ids, -1)
    assert_close(out, brute_force(x, w13, w2, weights, own), scale=8)


def test_what_it_does_not_compute_is_refused_before_memory_is_taken() -> None:
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    method, layer = method_and_layer(activation=MoEActivation.GELU)
    with pytest.raises(InvalidInputError, match=r"'gelu'.*silu"):
        method.create_weights(layer)
    method, layer = method_and_layer(apply_router_weight_on_input=True)
    with pytest.raises(InvalidInputError, match="apply_router_weight_on_input"):
        method.create_weights(layer)


@pytest.mark.parametrize(
    ("names", "experts"),
    [
        ({"num_local_experts": 8, "num_experts_per_tok": 2}, 8),
        ({"num_experts": 6, "num_experts_per_tok": 1, "n_group": None}, 6),
    ],
    ids=["Mixtral", "Qwen3"],
)
def test_names_of_configurations(names: dict[str, Any], experts: int) -> None:
    from ascend_fused_moe.vllm.router import router_settings

    found = router_settings(SimpleNamespace(**names))
    assert (found.num_experts, found.scoring, found.groups) == (experts, "softmax", 1)


def test_groups_of_experts_are_read() -> None:
    from ascend_fused_moe.vllm.router import router_settings

    given = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2}
    given |= {"scoring_func": "sigmoid", "norm_topk_prob": False, "routed_scaling_factor": 2.5}
    found = router_settings(SimpleNamespace(**given))
    assert (found.groups, found.top_groups, found.scoring) == (4, 2, "sigmoid")
    assert (found.renormalize, found.scale) == (False, 2.5)


@pytest.mark.parametrize("names", [{"num_experts": 8}, {"num_experts_per_tok": 2}], ids=str)
def test_a_config_without_experts_is_refused(names: dict[str, int]) -> None:
    from ascend_fused_moe.vllm.router import router_settings

    with pytest.raises(InvalidInputError, match="num_experts_per_tok"):
        router_settings(SimpleNamespace(**names))
