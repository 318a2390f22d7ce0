"""Loading: every tensor to its place, every rank its part, every problem at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ascend_fused_moe.layers.routed_experts import AscendRoutedExperts
from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_models_deepseek.deepseek_v4.sharding import Shard
from ascend_models_deepseek.deepseek_v4.weights import main_table, mtp_table
from ascend_models_deepseek.testing import SPECS, write_checkpoint
from ascend_ops_core.checkpoint.table import CheckpointError, WeightTable
from safetensors.torch import load_file
from torch import nn

Tensors = dict[str, torch.Tensor]

# The axis of the parameter along which ranks are put together again; others are replicated.
AXIS = {
    "embed_tokens.weight": 0,
    "lm_head.weight": 0,
    "wq_b": 0,
    "attn_sink": 0,
    "wo_a": 0,
    "wo_b": 1,
    "experts.w2": 2,
    "shared_experts.w2": 1,
}
# Gate and up rows of one rank lie together, so these are put together half by half.
HALVES = {"experts.w13": 1, "shared_experts.w13": 0}


def axis_of(name: str, table: dict[str, int]) -> int | None:
    if ".indexer." in name:
        return None
    hits = [axis for end, axis in table.items() if name.endswith(end)]
    shared = [axis for end, axis in table.items() if name.endswith(end) and "shared" in end]
    return (shared or hits or [None])[0]


@pytest.fixture(scope="module", params=["mixed", "tensor_parallel"])
def spec(request: pytest.FixtureRequest) -> DeepseekV4Spec:
    tiny = replace(SPECS[request.param], o_groups=4)
    return DeepseekV4Spec.from_config(tiny.original_config())


def shard(spec: DeepseekV4Spec, size: int = 1, rank: int = 0) -> Shard:
    part = spec.vocab_size // size
    return Shard.of(spec, size, rank, (rank * part, (rank + 1) * part))


def checkpoint(table: WeightTable, seed: int = 0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(0, 8, rule.shape, generator=generator)
        if rule.below is not None
        else torch.randn(rule.shape, generator=generator)
        for name, rule in table.rules.items()
    }


def parameter_shapes(spec: DeepseekV4Spec, size: int) -> dict[str, tuple[int, ...]]:
    """The main model's parameters, written down without the table of rules."""
    n, hidden, width = spec.hc_mult, spec.hidden_size, spec.head_dim
    heads, groups = spec.num_attention_heads // size, spec.o_groups // size
    inter = spec.moe_intermediate_size // size
    mixes = n * n + 2 * n
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (spec.vocab_size // size, hidden),
        "lm_head.weight": (spec.vocab_size // size, hidden),
        "model.norm": (hidden,),
        "model.hc_head.fn": (n, n * hidden),
        "model.hc_head.scale": (1,),
        "model.hc_head.base": (n,),
    }
    for layer, ratio in enumerate(spec.compress_ratios):
        own: dict[str, tuple[int, ...]] = {
            "attn.wqa_wkv": (spec.q_lora_rank + width, hidden),
            "attn.q_norm": (spec.q_lora_rank,),
            "attn.kv_norm": (width,),
            "attn.wq_b": (heads * width, spec.q_lora_rank),
            "attn.attn_sink": (heads,),
            "attn.o_proj.wo_a": (groups, spec.o_lora_rank, heads // groups * width),
            "attn.o_proj.wo_b": (hidden, groups * spec.o_lora_rank),
            "ffn.gate": (spec.n_routed_experts, hidden),
            "ffn.experts.w13": (spec.n_routed_experts, 2 * inter, hidden),
            "ffn.experts.w2": (spec.n_routed_experts, hidden, inter),
            "ffn.shared_experts.w13": (2 * inter, hidden),
            "ffn.shared_experts.w2": (hidden, inter),
        }
        for part in ("attn", "ffn"):
            own |= {
                f"{part}_norm": (hidden,),
                f"hc_{part}.fn": (mixes, n * hidden),
                f"hc_{part}.scale": (3,),
                f"hc_{part}.base": (mixes,),
            }
        compressed = {0: {}, 128: {"attn": (1, width)}}.get(
            ratio, {"attn": (2, width), "attn.indexer": (2, spec.index_head_dim)}
        )
        for place, (series, dim) in compressed.items():
            own |= {
                f"{place}.compressor.wkv_wgate": (2 * series * dim, hidden),
                f"{place}.compressor.ape": (ratio, series * dim),
                f"{place}.compressor.norm": (dim,),
            }
        if ratio == 4:
            index = spec.index_n_heads * spec.index_head_dim
            own["attn.indexer.wq_b"] = (index, spec.q_lora_rank)
            own["attn.indexer.weights_proj"] = (spec.index_n_heads, hidden)
        if layer < spec.num_hash_layers:
            own["ffn.tid2eid"] = (spec.vocab_size, spec.num_experts_per_tok)
        else:
            own["ffn.gate_bias"] = (spec.n_routed_experts,)
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in own.items()}
    return shapes


def model_of(spec: DeepseekV4Spec, size: int = 1, rank: int = 0) -> nn.Module:
    """Modules that hold a rank's parameters, filled with a value no checkpoint has."""

    def experts_of() -> AscendRoutedExperts:
        sizes = spec.n_routed_experts, spec.hidden_size, spec.moe_intermediate_size
        return AscendRoutedExperts(*sizes, torch.float32, tp_rank=rank, tp_ranks=size)

    root = nn.Module()
    for name, shape in parameter_shapes(spec, size).items():
        *path, leaf = name.split(".")
        module = root
        for part in path:
            if part not in dict(module.named_children()):
                module.add_module(part, experts_of() if part == "experts" else nn.Module())
            module = module.get_submodule(part)
        if path[-1] == "experts":
            assert module.get_parameter(leaf).shape == shape
            module.get_parameter(leaf).fill_(-7)
            continue
        value = torch.full(shape, -7, dtype=torch.int32 if leaf == "tid2eid" else torch.float32)
        module.register_parameter(leaf, nn.Parameter(value, requires_grad=False))
    return root


def loaded(spec: DeepseekV4Spec, size: int, tensors: Tensors) -> list[Tensors]:
    """Parameters of every rank after loading."""
    ranks = []
    for rank in range(size):
        model = model_of(spec, size, rank)
        filled = main_table(spec, shard(spec, size, rank)).load(model, tensors.items())
        assert filled == set(parameter_shapes(spec, size))
        ranks.append({name: p.data for name, p in model.named_parameters()})
    return ranks


def test_table_names_what_checkpoints_contain(tmp_path: Path) -> None:
    tiny = SPECS["mixed"]
    spec = DeepseekV4Spec.from_config(tiny.original_config())
    found = {
        name: (tuple(t.shape), t.dtype)
        for name, t in load_file(write_checkpoint(tiny, tmp_path) / "model.safetensors").items()
    }
    for table in (main_table(spec, shard(spec)), mtp_table(spec, shard(spec))):
        assert table.problems(found) == []


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_parameter_is_filled_and_ranks_reassemble(spec: DeepseekV4Spec, size: int) -> None:
    tensors = checkpoint(main_table(spec, shard(spec)))
    whole = loaded(spec, 1, tensors)[0]
    ranks = loaded(spec, size, tensors)
    for name, expected in whole.items():
        assert not (expected == -7).any(), f"{name} is not filled"
        parts = [rank[name] for rank in ranks]
        axis, halved = axis_of(name, AXIS), axis_of(name, HALVES)
        if halved is not None:
            halves = [part.chunk(2, dim=halved) for part in parts]
            got = torch.cat([torch.cat([h[i] for h in halves], halved) for i in (0, 1)], halved)
        elif axis is not None:
            got = torch.cat(parts, dim=axis)
        else:
            assert all(torch.equal(part, expected) for part in parts), name
            continue
        assert torch.equal(got, expected), name


def test_fused_parameters_hold_their_parts_in_order(spec: DeepseekV4Spec) -> None:
    tensors = checkpoint(main_table(spec, shard(spec)))
    whole = loaded(spec, 1, tensors)[0]
    layer = spec.compress_ratios.index(4)
    own, name = f"model.layers.{layer}", f"layers.{layer}"

    def cat(*names: str) -> torch.Tensor:
        return torch.cat([tensors[f"{name}.{one}.weight"] for one in names])

    assert torch.equal(whole[f"{own}.attn.wqa_wkv"], cat("attn.wq_a", "attn.wkv"))
    for place in ("attn", "attn.indexer"):
        fused = cat(f"{place}.compressor.wkv", f"{place}.compressor.wgate")
        assert torch.equal(whole[f"{own}.{place}.compressor.wkv_wgate"], fused)
    for e in range(spec.n_routed_experts):
        both = cat(f"ffn.experts.{e}.w1", f"ffn.experts.{e}.w3")
        assert torch.equal(whole[f"{own}.ffn.experts.w13"][e], both)
        assert torch.equal(whole[f"{own}.ffn.experts.w2"][e], cat(f"ffn.experts.{e}.w2"))
    both = cat("ffn.shared_experts.w1", "ffn.shared_experts.w3")
    assert torch.equal(whole[f"{own}.ffn.shared_experts.w13"], both)
    assert torch.equal(whole[f"{own}.attn.o_proj.wo_a"].flatten(0, 1), cat("attn.wo_a"))
    assert torch.equal(whole["lm_head.weight"], tensors["head.weight"])
    assert torch.equal(whole["model.embed_tokens.weight"], tensors["embed.weight"])


def problems_of(table: WeightTable, tensors: Tensors) -> list[str]:
    return table.problems({name: (tuple(t.shape), t.dtype) for name, t in tensors.items()})


def test_all_problems_at_once_with_close_names(spec: DeepseekV4Spec) -> None:
    table = main_table(spec, shard(spec))
    tensors = checkpoint(table)
    tensors["layers.1.attn.wq_x.weight"] = tensors.pop("layers.1.attn.wq_a.weight")
    del tensors["layers.3.ffn.experts.2.w1.weight"]
    tensors["layers.2.attn.wo_b.weight"] = torch.zeros(3, 5)
    tensors["norm.weight"] = tensors["norm.weight"].to(torch.float8_e4m3fn)
    tensors["layers.0.ffn.zzz"] = torch.zeros(2)
    tensors["mtp.0.anything"] = torch.zeros(1)
    lines = problems_of(table, tensors)
    assert sorted(lines) == sorted(
        [
            f"missing layers.1.attn.wq_a.weight [64, {spec.hidden_size}] "
            "(closest: layers.1.attn.wq_x.weight)",
            f"missing layers.3.ffn.experts.2.w1.weight [64, {spec.hidden_size}]",
            f"unexpected layers.1.attn.wq_x.weight [64, {spec.hidden_size}] "
            "(closest: layers.1.attn.wq_a.weight)",
            "unexpected layers.0.ffn.zzz [2]",
            f"shape of layers.2.attn.wo_b.weight is [3, 5], expected [{spec.hidden_size}, 128]",
            "dtype of norm.weight is float8_e4m3fn, loadable are float32, bfloat16, float16",
        ]
    )
    model = model_of(spec)
    with pytest.raises(CheckpointError, match=r"6 problem\(s\)") as caught:
        table.load(model, tensors.items())
    assert all(line in str(caught.value) for line in lines)
    parameters = dict(model.named_parameters())
    for misfit in ("model.norm", "model.layers.2.attn.o_proj.wo_b"):
        assert (parameters[misfit] == -7).all(), (
            f"{misfit} was copied from a tensor that does not fit"
        )


@pytest.mark.parametrize(
    "dtype",
    [torch.uint8, torch.int8, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu],
    ids=str,
)
def test_a_quantized_tensor_is_named(spec: DeepseekV4Spec, dtype: torch.dtype) -> None:
    table = main_table(spec, shard(spec))
    found = {n: (tuple(t.shape), t.dtype) for n, t in checkpoint(table).items()}
    name = "layers.0.attn.wq_a.weight"
    found[name] = found[name][0], dtype
    found["layers.0.attn.wq_a.scale"] = (1, 1), torch.float8_e8m0fnu
    lines = table.problems(found)
    short = str(dtype).removeprefix("torch.")
    assert any(line.startswith(f"dtype of {name} is {short}") for line in lines)
    assert any("unexpected layers.0.attn.wq_a.scale" in line for line in lines)
    assert len(lines) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int32], ids=str)
def test_expert_tables_are_integers(spec: DeepseekV4Spec, dtype: torch.dtype) -> None:
    table = main_table(spec, shard(spec))
    tensors = checkpoint(table)
    name = "layers.0.ffn.gate.tid2eid"
    tensors[name] = tensors[name].to(dtype)
    lines = problems_of(table, tensors)
    if dtype.is_floating_point:
        assert lines == [f"dtype of {name} is float32, loadable are int64, int32"]
    else:
        assert lines == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_weights_are_converted_to_the_parameter_dtype(
    spec: DeepseekV4Spec, dtype: torch.dtype
) -> None:
    tensors = checkpoint(main_table(spec, shard(spec)))
    tensors["norm.weight"] = tensors["norm.weight"].to(dtype)
    whole = loaded(spec, 1, tensors)[0]
    assert torch.equal(whole["model.norm"], tensors["norm.weight"].float())


def test_long_lists_of_problems_are_cut_and_take_no_minutes(spec: DeepseekV4Spec) -> None:
    big = replace(spec, n_routed_experts=24)
    table = main_table(big, shard(big))
    renamed = {f"model.{name}": t for name, t in checkpoint(table).items()}
    start = time.process_time()
    lines = problems_of(table, renamed)
    assert time.process_time() - start < 20
    assert len(lines) == 2 * len(table.rules)
    assert "closest: model." in lines[0]
    with pytest.raises(CheckpointError, match=r"and \d+ more") as caught:
        table.load(nn.Module(), renamed.items())
    assert len(str(caught.value).splitlines()) < 50


def draft(spec: DeepseekV4Spec) -> Iterator[tuple[str, WeightTable]]:
    yield "mtp.0", mtp_table(spec, shard(spec))


def test_draft_may_leave_out_embedding_and_head(spec: DeepseekV4Spec) -> None:
    for prefix, table in draft(spec):
        tensors = checkpoint(table)
        assert problems_of(table, tensors) == []
        for optional in ("emb.tok_emb.weight", "head.weight"):
            tensors.pop(f"{prefix}.{optional}")
            assert problems_of(table, tensors) == []
        required = set(table.rules) - {n for n, rule in table.rules.items() if rule.optional}
        assert set(tensors) == required
        tensors[f"{prefix}.head.weight"] = torch.zeros(2, 2)
        lines = problems_of(table, tensors)
        assert [line.split(" is ")[0] for line in lines] == [f"shape of {prefix}.head.weight"]


def test_draft_ignores_the_main_model_and_the_other_way_round(spec: DeepseekV4Spec) -> None:
    main, mtp = main_table(spec, shard(spec)), mtp_table(spec, shard(spec))
    tensors = checkpoint(main) | checkpoint(mtp, seed=1)
    assert problems_of(main, tensors) == []
    assert problems_of(mtp, tensors) == []
    missing = {name: t for name, t in tensors.items() if name != "mtp.0.e_proj.weight"}
    assert problems_of(main, missing) == []
    assert problems_of(mtp, missing)[0].startswith("missing mtp.0.e_proj.weight")
