"""Which part of the model a tensor-parallel rank holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_models_deepseek.deepseek_v4.sharding import Shard
from ascend_models_deepseek.testing import SPECS
from ascend_ops_core import InvalidInputError


@pytest.fixture(scope="module")
def spec() -> DeepseekV4Spec:
    return DeepseekV4Spec.from_config(SPECS["tensor_parallel"].original_config())


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_cover_everything_once(spec: DeepseekV4Spec, size: int) -> None:
    shards = [Shard.of(spec, size, rank, (0, 1)) for rank in range(size)]
    for name, total in (
        ("heads", spec.num_attention_heads),
        ("intermediate", spec.moe_intermediate_size),
        ("shared_intermediate", spec.moe_intermediate_size * spec.n_shared_experts),
    ):
        ranges = [getattr(shard, name) for shard in shards]
        assert [i for low, high in ranges for i in range(low, high)] == list(range(total))
    per_group = spec.num_attention_heads // spec.o_groups
    for shard in shards:
        assert shard.heads == tuple(g * per_group for g in shard.projection.groups)
        assert shard.num_heads == shard.projection.num_groups * per_group
        assert shard.vocabulary == (0, 1)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_whole_experts_are_not_cut(spec: DeepseekV4Spec, size: int) -> None:
    """Shared experts are."""
    changed = replace(spec, moe_intermediate_size=68)
    for rank in range(size):
        shard = Shard.of(changed, size, rank, (0, 1), whole_experts=True)
        assert shard.intermediate == (0, 68)
        low, high = shard.shared_intermediate
        assert (high - low) * size == 68 * spec.n_shared_experts


def test_whole_experts_free_their_channels_alone(spec: DeepseekV4Spec) -> None:
    changed = replace(spec, moe_intermediate_size=66, n_shared_experts=2)
    assert Shard.of(changed, 4, 0, (0, 1), whole_experts=True).shared_intermediate == (0, 33)
    with pytest.raises(InvalidInputError, match=r"=4.*moe_intermediate_size=66.*\[1, 2\]"):
        Shard.of(changed, 4, 0, (0, 1))
    with pytest.raises(InvalidInputError, match=r"n_shared_experts=66.*\[1, 2\]"):
        Shard.of(replace(changed, n_shared_experts=1), 4, 0, (0, 1), whole_experts=True)


def test_ranks_beyond_the_groups_share_them(spec: DeepseekV4Spec) -> None:
    """Eight ranks and four groups: the heads of a rank are half of its group's."""
    for rank in range(8):
        shard = Shard.of(spec, 8, rank, (0, 1))
        assert shard.heads == (rank, rank + 1)
        assert shard.projection.groups == (rank // 2, rank // 2 + 1)
        first = rank % 2 * spec.head_dim
        assert shard.projection.channels == (first, first + spec.head_dim)
        assert shard.projection.num_latents == spec.o_lora_rank // 2


@pytest.mark.parametrize(
    ("size", "changes", "text"),
    [
        (3, {}, r"tensor_parallel_size=3.*num_attention_heads=8.*\[1, 2, 4, 8\]"),
        (8, {"o_lora_rank": 33}, r"tensor_parallel_size=8.*o_lora_rank=33.*\[1, 2, 4\]"),
        (2, {"num_attention_heads": 6, "o_groups": 3}, r"=2.*must divide o_groups=3.*\[1\]"),
        (4, {"moe_intermediate_size": 66}, r"moe_intermediate_size=66.*\[1, 2\]"),
        (2, {"num_attention_heads": 7, "o_groups": 7}, r"num_attention_heads=7.*\[1\]"),
    ],
    ids=["heads", "low_rank", "groups", "channels", "odd"],
)
def test_the_remedy_lists_only_sizes_that_work(
    spec: DeepseekV4Spec, size: int, changes: dict[str, int], text: str
) -> None:
    changed = replace(spec, **changes)
    with pytest.raises(InvalidInputError, match=text) as caught:
        Shard.of(changed, size, 0, (0, 1))
    for usable in eval(caught.value.remedy.removeprefix("Use one of ").removesuffix(".")):
        Shard.of(changed, usable, 0, (0, 1))
