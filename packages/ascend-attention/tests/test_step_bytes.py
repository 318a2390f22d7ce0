"""What latent attention works on, counted by hand."""

from __future__ import annotations

import pytest
from ascend_attention.step_bytes import IndexerSize, StepSize, context_bytes, latent_layer_bytes
from ascend_ops_core.devices import facts_of

A3 = facts_of("A3")


def latent(step: StepSize, indexer: IndexerSize | None, heads: int = 8) -> int:
    """Of DeepSeek-V3's widths in bfloat16."""
    return latent_layer_bytes(
        A3, step, heads=heads, latent=512, rope=64, value=128, itemsize=2, indexer=indexer
    )


@pytest.mark.parametrize("length", [4096, 131072])
def test_a_prompt_takes_what_its_tokens_take(length: int) -> None:
    """Absorbed queries twice, rotated ones, attended latents, values: whatever the context is."""
    wanted = 2048 * 8 * (3 * 512 + 64 + 128) * 2
    assert latent(StepSize(2048, 16, length), None) == wanted


def test_one_token_s_rows_are_shared_by_programs() -> None:
    alone = latent(StepSize(1, 1, 131072), None)
    assert alone == 8 * (3 * 512 + 64 + 128) * 2 + A3.cube_cores * 8 * 514 * 4


def test_scores_are_those_of_a_tile() -> None:
    """2^24 scores, as many of them sorted, and their order, beside what each query takes."""
    indexer = IndexerSize(64, 128, 2048)
    of_query = 8 * (3 * 512 + 64 + 128) * 2 + 2048 * (8 + 16) + 64 * (3 * 128 * 2 + 8)
    wanted = 2048 * of_query + 2**24 * (4 + 4 + 8)
    assert latent(StepSize(2048, 16, 131072), indexer) == wanted


def test_no_scores_where_everything_is_kept() -> None:
    few, many = (latent(StepSize(2048, 4, n), IndexerSize(64, 128, 2048)) for n in (2048, 65536))
    assert few < many


def test_rows_of_eight_bits_travel_as_they_are() -> None:
    sizes = {"ranks": 2, "heads": 8, "latent": 512, "row": 576, "itemsize": 2}
    step = StepSize(16, 2, 1024)
    whole, eight = (context_bytes(step, **sizes, row_bytes=one) for one in (None, 656))
    assert whole - eight == 2 * 2048 * (1152 - 656)
