"""vLLM's fused experts with this package's runner, in two processes, against brute force."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_fused_moe.testing.processes import RankProcesses, load_file
from ascend_ops_core.testing import assert_close

pytestmark = pytest.mark.engine

WORKER = Path(__file__).with_name("worker.py")
BIAS = torch.tensor([0.4, -0.2, 0.1, 0.9, 0.0])
TABLE = torch.tensor([[t % 5, (2 * t + 1) % 5] for t in (0, 1, 2, 3, 5, 6, 7, 8, 10)])


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankProcesses]:
    # vLLM names the shared memory of its ranks by it.
    environment = {"VLLM_DIST_IDENT": f"fused-experts-{os.getpid()}"}
    preload = ("vllm.config", "ascend_fused_moe.vllm.fused_moe.runner")
    with RankProcesses(2, WORKER, environment, preload) as processes:
        yield processes


def chosen(values: dict[str, torch.Tensor], options: dict[str, Any]) -> list[dict[int, float]]:
    """Weight of each chosen expert of each token."""
    logits = values["logits"].double()
    scoring = options.get("scoring_func", "softmax")
    scores = {
        "softmax": lambda: logits.softmax(-1),
        "sigmoid": lambda: logits.sigmoid(),
        "sqrtsoftplus": lambda: torch.nn.functional.softplus(logits).sqrt(),
    }[scoring]()
    ranked = scores + options.get("e_score_correction_bias", torch.zeros(1)).double()
    tokens = []
    for t in range(len(logits)):
        order = sorted(range(logits.shape[1]), key=lambda e, t=t: -float(ranked[t, e]))[:2]
        if "hash_indices_table" in options:
            order = options["hash_indices_table"][values["token_ids"][t]].tolist()
        own = scores[t][order]
        if options.get("renormalize", True):
            own = own / own.sum()
        own = own * options.get("routed_scaling_factor", 1.0)
        tokens.append(dict(zip(order, own.tolist(), strict=True)))
    return tokens


def expected(worker: Any, layer: Any) -> torch.Tensor:
    values = worker.values_of(layer)
    x = values["x"].double()
    limit = layer.options.get("swiglu_limit")
    gelu = layer.options.get("activation") == "gelu"

    factors = worker.factors_of(layer)

    def weight(name: str, e: int | None, adapter: int) -> torch.Tensor:
        whole = values[name].double()
        if e is None:
            return whole
        if adapter < 0:
            return whole[e]
        a, b = factors[name]
        return whole[e] + b[adapter, e].double() @ a[adapter, e].double()

    def network(
        row: torch.Tensor, names: tuple[str, str, str], e: int | None, adapter: int = -1
    ) -> torch.Tensor:
        w1, w3, w2 = (weight(name, e, adapter) for name in names)
        gate, up = w1 @ row, w3 @ row
        if limit and e is not None:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        if gelu:
            return w2 @ (gate * (1 + torch.special.erf(gate / 2**0.5)) / 2 * up)
        return w2 @ (gate / (1 + (-gate).exp()) * up)

    out = torch.zeros_like(x)
    for t, weights in enumerate(chosen(values, layer.options)):
        adapter = layer.adapters[t] if layer.adapters and t < len(layer.adapters) else -1
        for e, share in weights.items():
            out[t] += share * network(x[t], ("w1", "w3", "w2"), e, adapter)
        if layer.shared:
            out[t] += network(x[t], ("shared1", "shared3", "shared2"), None)
    return out


BIASED = {"scoring_func": "sigmoid", "e_score_correction_bias": BIAS, "routed_scaling_factor": 2.5}


@pytest.mark.parametrize("expert_parallel", [True, False], ids=["experts", "slices"])
@pytest.mark.parametrize(
    ("options", "shared"),
    [
        ({}, False),
        ({"renormalize": False}, True),
        (BIASED, False),
        (BIASED, True),
        ({"scoring_func": "sqrtsoftplus", "hash_indices_table": TABLE}, True),
        ({"swiglu_limit": 0.3}, True),
        ({"use_grouped_topk": True, "num_expert_group": 1, "topk_group": 1}, False),
    ],
    ids=["softmax", "plain_shared", "biased", "biased_shared", "table", "limit", "grouped"],
)
def test_equals_brute_force(
    ranks: RankProcesses, options: dict[str, Any], shared: bool, expert_parallel: bool
) -> None:
    """Five experts on two ranks; the sums are those of vLLM's own frame."""
    worker = load_file(WORKER)
    layer = worker.Layer(expert_parallel=expert_parallel, shared=shared, options=options)
    results = ranks.call("run", layer=layer)
    assert [one["held"] for one in results] == ([3, 2] if expert_parallel else [5, 5])
    for one in results:
        assert one["ways"] == ["all_gather"] if not expert_parallel else ["all_to_all"]
        assert one["reduced"] == expert_parallel
        assert_close(torch.from_numpy(one["output"]), expected(worker, layer), scale=4)


@pytest.mark.parametrize(
    ("options", "shared", "taken", "expert_parallel"),
    [
        (BIASED, True, True, True),
        (BIASED, True, True, False),
        ({"activation": "gelu"}, False, False, False),
    ],
    ids=["experts", "slices", "left_to_vllm"],
)
def test_on_a_cpu(
    ranks: RankProcesses, options: dict[str, Any], shared: bool, taken: bool, expert_parallel: bool
) -> None:
    """A layer that this package has no experts for runs in vLLM's kernels, which know no ranks."""
    worker = load_file(WORKER)
    layer = worker.Layer(cpu=True, shared=shared, expert_parallel=expert_parallel, options=options)
    for one in ranks.call("run", layer=layer):
        assert one["taken"] == taken
        assert one["ways"] == (["all_to_all"] if expert_parallel else [])
        assert_close(torch.from_numpy(one["output"]), expected(worker, layer), scale=4)


@pytest.mark.parametrize("expert_parallel", [True, False], ids=["experts", "slices"])
def test_a_sum_that_the_model_defers(ranks: RankProcesses, expert_parallel: bool) -> None:
    """Bug case 6: each rank returns its part, and their sum is the output."""
    worker = load_file(WORKER)
    layer = worker.Layer(
        shared=True, expert_parallel=expert_parallel, options={"reduce_results": False}
    )
    results = ranks.call("run", layer=layer)
    assert [one["ways"] for one in results] == [["all_gather"]] * 2
    parts = [torch.from_numpy(one["output"]) for one in results]
    assert_close(parts[0] + parts[1], expected(worker, layer), scale=4)


@pytest.mark.parametrize("expert_parallel", [True, False], ids=["experts", "slices"])
@pytest.mark.parametrize(
    "adapters", [(1, -1, 0, 0, 1, 1, -1), (0, 1, 1, -1), (-1,) * 7], ids=["mixed", "padded", "none"]
)
def test_adapters_of_vllm(
    ranks: RankProcesses, adapters: tuple[int, ...], expert_parallel: bool
) -> None:
    """As vLLM's LoRA wraps the layer and loads it: by expert, or by slices of each."""
    worker = load_file(WORKER)
    layer = worker.Layer(experts=4, adapters=adapters, expert_parallel=expert_parallel, shared=True)
    wanted = expected(worker, layer)
    for one in ranks.call("run", layer=layer):
        assert one["ways"] == ["all_gather"]
        assert_close(torch.from_numpy(one["output"]), wanted, scale=4)


def test_adapters_of_experts_that_ranks_do_not_share_evenly(ranks: RankProcesses) -> None:
    worker = load_file(WORKER)
    for error in ranks.call("refused", layer=worker.Layer(adapters=(0,) * 7)):
        assert "adapters of 5 experts on 2 ranks" in error


@pytest.mark.parametrize("expert_parallel", [True, False], ids=["experts", "slices"])
def test_no_tokens(ranks: RankProcesses, expert_parallel: bool) -> None:
    worker = load_file(WORKER)
    layer = worker.Layer(tokens=0, shared=True, expert_parallel=expert_parallel)
    for one in ranks.call("run", layer=layer):
        assert one["output"].shape == (0, worker.HIDDEN)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"has_bias": True}, "experts with biases"),
        ({"activation": "gelu"}, "activation 'gelu'"),
        ({"apply_router_weight_on_input": True}, "apply_router_weight_on_input=True"),
    ],
)
def test_what_is_not_here_is_refused(
    ranks: RankProcesses, options: dict[str, Any], message: str
) -> None:
    worker = load_file(WORKER)
    for error in ranks.call("refused", layer=worker.Layer(options=options)):
        assert message in error


@pytest.mark.parametrize(
    ("device", "runner"),
    [("npu", "AscendFusedMoERunner"), ("cpu", "CpuFusedMoERunner"), ("cuda", None)],
)
def test_registration(monkeypatch: pytest.MonkeyPatch, device: str, runner: str | None) -> None:
    from ascend_fused_moe.vllm import register
    from ascend_ops_core import InvalidInputError
    from vllm.model_executor import custom_op
    from vllm.platforms import current_platform

    registry: dict[str, type] = {}
    monkeypatch.setattr(custom_op, "op_registry_oot", registry)
    monkeypatch.setattr(type(current_platform), "device_type", device)
    register()
    register()
    if runner is None:
        assert registry == {}
        return
    assert registry["MoERunner"].__name__ == runner
    registry["MoERunner"] = dict
    with pytest.raises(InvalidInputError, match=r"vLLM's class MoERunner: builtins.dict is"):
        register()
