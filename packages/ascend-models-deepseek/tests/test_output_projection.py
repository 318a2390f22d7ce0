"""Which ranks exchange rows, and what the engine's settings choose."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_models_deepseek.testing import SPECS
from ascend_ops_core import InvalidInputError

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    ("world", "replicas", "inner", "size"),
    [(4, 4, 1, 2), (12, 6, 2, 3), (8, 2, 4, 2), (16, 4, 2, 2)],
)
def test_replicas_exchange_with_their_neighbours(
    world: int, replicas: int, inner: int, size: int
) -> None:
    from ascend_models_deepseek.deepseek_v4.output_projection import exchange_ranks

    groups = exchange_ranks(world, replicas, inner, size)
    assert sorted(rank for group in groups for rank in group) == list(range(world))
    for group in groups:
        assert len({rank % inner for rank in group}) == 1
        places = [rank // inner for rank in group]
        assert places == list(range(places[0], places[0] + size))
        # A group begins at a multiple of its size, so a replica's place in it is its remainder.
        assert places[0] % size == 0
        assert len({rank // (replicas * inner) for rank in group}) == 1


def test_tensor_parallel_ranks_of_a_group_of_heads_lie_together() -> None:
    from ascend_models_deepseek.deepseek_v4.output_projection import latent_ranks

    assert latent_ranks(6, 3) == [[0, 1, 2], [3, 4, 5]]


def engine(tensor: int = 1, data: int = 1, **additional: Any) -> Any:
    return SimpleNamespace(
        parallel_config=SimpleNamespace(tensor_parallel_size=tensor, data_parallel_size=data),
        model_config=SimpleNamespace(dtype=torch.bfloat16),
        additional_config=additional,
    )


@pytest.fixture(scope="module")
def spec() -> DeepseekV4Spec:
    return DeepseekV4Spec.from_config(SPECS["tensor_parallel"].original_config())


def test_the_settings_choose(spec: DeepseekV4Spec) -> None:
    from ascend_models_deepseek.deepseek_v4.output_projection import chosen_projection

    def chosen(*args: Any, family: str = "A3", **additional: Any) -> str:
        return chosen_projection(spec, engine(*args, **additional), family).variant.name

    assert chosen() == "plain"
    assert chosen(8) == "olora_tp"
    assert chosen(2, 2, o_proj_tensor_parallel_size=2) == "otp"
    assert chosen(family="A5", o_proj="fp8") == "fp8"
    together = chosen(1, 2, family="A5", o_proj="otp_fp8", o_proj_tensor_parallel_size=2)
    assert together == "otp_fp8"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (engine(o_proj="fp8"), r"o_proj='fp8' on A3.*exists on A5.*Use plain"),
        (engine(o_proj_tensor_parallel_size=2), r"must divide data_parallel_size=1"),
        (engine(2, 8, o_proj_tensor_parallel_size=4), r"=4 must divide the 2 groups"),
        (engine(o_proj_tensor_parallel_size="2"), r"='2': it is a number of ranks"),
        (engine(o_proj_tensor_parallel_size=True), r"=True: it is a number of ranks"),
        (engine(o_proj_tensor_parallel_size=-1), r"=-1: it is a number of ranks"),
        (engine(o_proj=3), r"o_proj=3: known are auto, plain"),
    ],
)
def test_what_is_refused(spec: DeepseekV4Spec, given: Any, message: str) -> None:
    from ascend_models_deepseek.deepseek_v4.output_projection import chosen_projection

    with pytest.raises(InvalidInputError, match=message):
        chosen_projection(spec, given, "A3")


def test_a_low_rank_that_ranks_cannot_share(spec: DeepseekV4Spec) -> None:
    from ascend_models_deepseek.deepseek_v4.output_projection import chosen_projection

    odd = replace(spec, o_lora_rank=33)
    with pytest.raises(InvalidInputError, match=r"olora_tp: 2 ranks share a group.*o_lora_rank=33"):
        chosen_projection(odd, engine(8), "A2")
