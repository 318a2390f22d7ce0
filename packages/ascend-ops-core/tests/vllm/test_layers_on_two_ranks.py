"""vLLM's layers with our forms, in two processes over gloo, against the unsharded result."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_ops_core.testing import assert_close

pytestmark = pytest.mark.engine

HIDDEN, WIDE, TOKENS, VOCABULARY = 24, 32, 5, 101


def _full(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _own(seed: int, rank: int, *shape: int) -> torch.Tensor:
    return _full(*shape, seed=seed * 100 + rank)


def _linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.double() @ weight.double().T


def _on(rank: int, folder: Path) -> None:
    """Run every check as one of two processes and leave a report of each."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state

    torch.set_num_threads(1)
    with set_current_vllm_config(VllmConfig()), torch.inference_mode():
        parallel_state.init_distributed_environment(
            2, rank, f"file://{folder}/rendezvous", rank, "gloo"
        )
        parallel_state.initialize_model_parallel(2)
        for check in CHECKS:
            text = "passed"
            try:
                check(rank, parallel_state.get_tp_group())
            except Exception:
                text = traceback.format_exc()
            (folder / f"{check.__name__}.{rank}").write_text(text)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with what two processes, tensor-parallel to each other, found."""
    folder = tmp_path_factory.mktemp("ranks")
    # Forked processes would inherit the threads of this one's kernels.
    ranks = [
        subprocess.Popen([sys.executable, __file__, str(rank), str(folder)]) for rank in range(2)
    ]
    for process in ranks:
        process.wait(400)
    return folder


def _tensor_parallel(rank: int, group: Any) -> None:
    from ascend_ops_core.vllm.linear import (
        AscendColumnParallelLinear,
        AscendMergedColumnParallelLinear,
        AscendQKVParallelLinear,
        AscendReplicatedLinear,
        AscendRowParallelLinear,
    )

    x, weight, bias = (
        _full(TOKENS, HIDDEN, seed=1),
        _full(WIDE, HIDDEN, seed=2),
        _full(WIDE, seed=3),
    )
    expected = _linear(x, weight) + bias.double()
    column = AscendColumnParallelLinear(HIDDEN, WIDE, gather_output=True, prefix="a.up_proj")
    _load(column, "weight", weight)
    _load(column, "bias", bias)
    assert column.weight.shape == (WIDE // 2, HIDDEN)
    assert_close(column(x)[0], expected)

    merged = AscendMergedColumnParallelLinear(HIDDEN, [WIDE, WIDE], bias=False, prefix="a.gate_up")
    for i in range(2):
        _load(merged, "weight", weight * (i + 1), i)
    half = slice(rank * WIDE // 2, (rank + 1) * WIDE // 2)
    parts = [_linear(x, weight)[:, half] * (i + 1) for i in range(2)]
    assert_close(merged(x)[0], torch.cat(parts, -1), scale=4)

    qkv = AscendQKVParallelLinear(HIDDEN, 4, 4, 2, bias=False, prefix="a.qkv_proj")
    heads = {"q": _full(16, HIDDEN, seed=4), "k": _full(8, HIDDEN, seed=5), "v": weight[:8]}
    for name, one in heads.items():
        _load(qkv, "weight", one, name)
    wanted = torch.cat([_linear(x, one).chunk(2, -1)[rank] for one in heads.values()], -1)
    assert_close(qkv(x)[0], wanted, scale=4)

    row = AscendRowParallelLinear(WIDE, HIDDEN, prefix="a.down_proj")
    down, down_bias, wide = (
        _full(HIDDEN, WIDE, seed=6),
        _full(HIDDEN, seed=7),
        _full(3, WIDE, seed=8),
    )
    _load(row, "weight", down)
    _load(row, "bias", down_bias)
    assert_close(row(wide.chunk(2, -1)[rank])[0], _linear(wide, down) + down_bias.double())

    whole = AscendReplicatedLinear(HIDDEN, WIDE, return_bias=False, prefix="a.gate")
    _load(whole, "weight", weight)
    _load(whole, "bias", bias)
    assert_close(whole(x), expected)
    for layer in (column, merged, qkv, row, whole):
        assert type(layer.quant_method).__name__ == "AscendUnquantizedLinearMethod"
        layer.quant_method.process_weights_after_loading(layer)


def _own_tokens(rank: int, group: Any) -> None:
    from ascend_ops_core.vllm.linear import (
        AscendColumnParallelLinear,
        AscendMergedColumnParallelLinear,
        AscendRowParallelLinear,
        ParallelLayout,
    )
    from ascend_ops_core.vllm.linear.layout import built_with

    group = _with_reduce_scatter(group)
    layout = ParallelLayout(mlp=group, o_proj=group, dsv4_o_proj=group, shared_expert_dp=True)
    options = {"bias": False, "return_bias": False}
    with built_with(layout):
        up = AscendMergedColumnParallelLinear(
            HIDDEN, [WIDE, WIDE], prefix="layers.0.mlp.gate_up_proj", **options
        )
        down = AscendRowParallelLinear(WIDE, HIDDEN, prefix="layers.0.mlp.down_proj", **options)
        o_proj = AscendRowParallelLinear(WIDE, HIDDEN, prefix="layers.0.attn.o_proj", **options)
        first = AscendColumnParallelLinear(8, 4 * 6, prefix="layers.0.attn.wo_a", **options)
        second = AscendRowParallelLinear(24, HIDDEN, prefix="layers.0.attn.wo_b", **options)
        name = "layers.1.mlp.shared_experts.gate_up_proj"
        shared = AscendMergedColumnParallelLinear(HIDDEN, [WIDE, WIDE], prefix=name, **options)
    x, wide = _own(11, rank, TOKENS, HIDDEN), _own(12, rank, TOKENS, WIDE)
    gate, back = _full(WIDE, HIDDEN, seed=13), _full(HIDDEN, WIDE, seed=14)
    for layer in (up, shared):
        for i in range(2):
            _load(layer, "weight", gate * (i + 1), i)
    for layer in (down, o_proj):
        _load(layer, "weight", back)
    wo_a, wo_b = _full(24, 8, seed=15), _full(HIDDEN, 24, seed=16)
    _load(first, "weight", wo_a)
    _load(second, "weight", wo_b)

    hidden = up(x)
    assert hidden.shape == (2 * TOKENS, WIDE)
    act = hidden[:, : WIDE // 2].relu() + hidden[:, WIDE // 2 :]
    full = _linear(x, gate)
    assert_close(down(act), _linear(full.relu() + 2 * full, back), scale=30)
    assert_close(o_proj(wide), _linear(wide, back), scale=4)
    heads = _own(17, rank, TOKENS, 4, 8)
    latent = torch.einsum("tgk,gnk->tgn", heads, wo_a.view(4, 6, 8)).flatten(1)
    assert_close(second(first(heads)), _linear(latent, wo_b), scale=8)
    assert_close(shared(x), torch.cat([full, 2 * full], -1), scale=4)
    assert shared.weight.shape == (2 * WIDE, HIDDEN)


def _vocabulary(rank: int, group: Any) -> None:
    from ascend_ops_core.vllm.embedding import (
        AscendLogitsProcessor,
        AscendParallelLMHead,
        AscendVocabParallelEmbedding,
    )
    from ascend_ops_core.vllm.linear import ParallelLayout
    from ascend_ops_core.vllm.linear.layout import built_with

    table = _full(VOCABULARY, HIDDEN, seed=21)
    for layout in (ParallelLayout(), _shared_vocabulary(group)):
        with built_with(layout):
            embedding = AscendVocabParallelEmbedding(VOCABULARY, HIDDEN)
            head = AscendParallelLMHead(VOCABULARY, HIDDEN, bias=True)
            logits = AscendLogitsProcessor(VOCABULARY)
        bias = _full(VOCABULARY, seed=22)
        _load(embedding, "weight", table)
        _load(head, "weight", table)
        _load(head, "bias", bias)
        assert embedding.weight.shape == (64, HIDDEN)
        seed = 23 + (rank if layout.embedding is not None else 0)
        ids = torch.randint(0, VOCABULARY, (7,), generator=torch.Generator().manual_seed(seed))
        ids[-1] = VOCABULARY - 1
        assert torch.equal(embedding(ids), table[ids])
        # A padding row is held by no rank.
        assert torch.equal(embedding(torch.full((2,), -1)), torch.zeros(2, HIDDEN))
        got = logits(head, table[ids], head.bias)
        assert got.shape == (7, VOCABULARY)
        assert_close(got, _linear(table[ids], table) + bias.double(), scale=8)


def _shared_vocabulary(group: Any) -> Any:
    from ascend_ops_core.vllm.linear import ParallelLayout

    shared = _with_reduce_scatter(group)
    return ParallelLayout(embedding=shared, lm_head=shared)


def _with_reduce_scatter(group: Any) -> Any:
    """vLLM's group; gloo adds up, then takes the part."""

    def reduce_scatter(x: torch.Tensor, dim: int) -> torch.Tensor:
        return group.all_reduce(x.clone()).chunk(2, dim)[group.rank_in_group].contiguous()

    return SimpleNamespace(
        rank_in_group=group.rank_in_group,
        world_size=group.world_size,
        device_group=group.device_group,
        all_gather=group.all_gather,
        all_reduce=group.all_reduce,
        reduce_scatter=reduce_scatter,
    )


def _load(layer: Any, name: str, whole: torch.Tensor, *shard: Any) -> None:
    parameter = getattr(layer, name)
    parameter.weight_loader(parameter, whole, *shard)


CHECKS: tuple[Callable[[int, Any], None], ...] = (_tensor_parallel, _own_tokens, _vocabulary)


@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
def test_equals_the_unsharded_layers(check: str, reports: Path) -> None:
    files = [reports / f"{check}.{rank}" for rank in range(2)]
    texts = [one.read_text() if one.exists() else "no report" for one in files]
    assert texts == ["passed", "passed"], "\n".join(texts)


if __name__ == "__main__":
    _on(int(sys.argv[1]), Path(sys.argv[2]))
