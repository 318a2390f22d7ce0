"""Which layers the table of parallel forms picks, and which weights keep their layout."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytestmark = pytest.mark.engine

GROUP = SimpleNamespace(world_size=2, rank_in_group=1)


@pytest.mark.parametrize(
    ("kind", "prefix", "layout", "name"),
    [
        ("column", "model.layers.0.mlp.gate_up_proj", {"mlp": GROUP}, "MLPColumnParallelOp"),
        ("row", "model.layers.0.mlp.down_proj", {"mlp": GROUP}, "MLPRowParallelOp"),
        ("row", "model.layers.0.mlp.gate_up_proj", {"mlp": GROUP}, None),
        ("column", "model.layers.0.mlp.gate_up_proj", {}, None),
        ("column", "layers.1.mlp.shared_experts.gate_up_proj", {"mlp": GROUP}, None),
        (
            "column",
            "layers.1.mlp.shared_experts.gate_up_proj",
            {"shared_expert_dp": True, "mlp": GROUP},
            "SharedExpertColumnParallelOp",
        ),
        (
            "row",
            "layers.1.mlp.shared_expert.down_proj",
            {"shared_expert_dp": True},
            "SharedExpertRowParallelOp",
        ),
        ("row", "layers.1.self_attn.o_proj", {"o_proj": GROUP}, "OProjRowParallelOp"),
        ("row", "layers.1.self_attn.o_proj", {"dsv4_o_proj": GROUP}, None),
        ("column", "layers.1.attn.wo_a", {"dsv4_o_proj": GROUP}, "DSV4OProjColumnParallelOp"),
        ("row", "layers.1.attn.wo_b", {"dsv4_o_proj": GROUP}, "DSV4OProjRowParallelOp"),
        (
            "column",
            "layers.1.attn.q_b_proj",
            {"context_parallel": True},
            "ShardedCPColumnParallelOp",
        ),
        ("column", "layers.1.attn.indexer.wk", {"context_parallel": True}, None),
    ],
    ids=lambda value: str(value) if not isinstance(value, dict) else "+".join(value) or "plain",
)
def test_the_table(kind: str, prefix: str, layout: dict, name: str | None) -> None:
    from ascend_ops_core.vllm.linear import ParallelLayout, get_parallel_op
    from ascend_ops_core.vllm.linear.layout import built_with

    layer = SimpleNamespace()
    with built_with(ParallelLayout(**layout)):
        op = get_parallel_op(kind, prefix, layer)
        assert (type(op).__name__ if op else None) == name
        if op is not None:
            assert op.layer is layer
            assert (op.tp_rank, op.tp_size) == ((0, 1) if op.local else (1, 2))
        assert get_parallel_op(kind, prefix, layer, disable_tp=True) is None
    assert get_parallel_op(kind, prefix, layer) is None


def test_replicated_and_shared_expert_layers() -> None:
    from ascend_ops_core.vllm.linear import get_replicated_op, is_shared_expert_layer

    assert get_replicated_op(SimpleNamespace()).local
    assert is_shared_expert_layer("model.layers.3.mlp.shared_experts.down_proj")
    assert is_shared_expert_layer("model.layers.3.mlp.shared_expert")
    assert not is_shared_expert_layer("model.layers.3.mlp.shared_expert_gate")
    assert not is_shared_expert_layer("model.layers.3.mlp.experts.0.down_proj")


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ({"n_routed_experts": 256, "first_k_dense_replace": 3}, {3, 4, 5}),
        ({"n_routed_experts": 256, "first_k_dense_replace": 1, "moe_layer_freq": 2}, {2, 4}),
        ({"num_experts": 128, "decoder_sparse_step": 2, "mlp_only_layers": [3]}, {1, 5}),
        ({"num_local_experts": 8, "moe_layer_freq": [0, 1, 1, 0, 0, 1]}, {1, 2, 5}),
        ({"num_experts": 0}, set()),
        ({}, set()),
    ],
    ids=["deepseek", "every second", "qwen", "list", "no experts", "dense"],
)
def test_moe_layers(config: dict, layers: set[int]) -> None:
    from ascend_ops_core.vllm.linear import is_moe_layer

    found = {
        i for i in range(6) if is_moe_layer(f"model.layers.{i}.mlp", SimpleNamespace(**config))
    }
    assert found == layers
    assert not is_moe_layer("model.embed_tokens", SimpleNamespace(**config))


def test_weights_that_keep_their_layout() -> None:
    from ascend_ops_core.devices import facts_of
    from ascend_ops_core.vllm.linear import should_keep_nd
    from ascend_ops_core.vllm.linear.method import nz_support

    facts, weight = facts_of("A2"), torch.empty(64, 128, dtype=torch.bfloat16, device="meta")
    assert not should_keep_nd(facts, "model.layers.0.mlp.down_proj", weight)
    for name in ("self_attn.kv_b_proj", "attn.wo_a", "linear_attn.conv1d", "lm_head"):
        assert should_keep_nd(facts, f"model.layers.0.{name}", weight)
        assert name.rsplit(".", 1)[-1] in nz_support(facts, f"model.{name}", weight).reason
    assert should_keep_nd(facts, "mlp.down_proj", weight.float())
    assert should_keep_nd(facts, "mlp.down_proj", weight[:, :100])


def test_whole_layers_are_registered_on_an_npu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    import ascend_ops_core.vllm as adaptors
    from vllm.model_executor import custom_op
    from vllm.platforms import current_platform

    registry: dict[str, type] = {}
    monkeypatch.setattr(custom_op, "op_registry_oot", registry)
    monkeypatch.setattr(adaptors, "_CLASSES", ())
    adaptors.register()
    assert registry == {}
    monkeypatch.setattr(type(current_platform), "device_type", "npu")
    adaptors.register()
    adaptors.register()
    assert set(registry) == {name for name, _ in adaptors._NPU_CLASSES}
    for name, ours in registry.items():
        assert name in {base.__name__ for base in ours.__mro__}
