"""The table of caches: which a layer has, their sizes, and what is refused."""

from __future__ import annotations

import pytest
import torch
from ascend_attention.caches import (
    DEVICE_CACHES,
    SUPPORTED_RATIOS,
    CacheKind,
    CacheRole,
    default_block_tokens,
    describe,
    layer_caches,
    overlap_of,
)
from ascend_ops_core import InvalidInputError

ROLES = {
    0: ["swa_cache"],
    4: ["swa_cache", "compressed_cache", "state_cache", "index_cache", "index_state_cache"],
    128: ["swa_cache", "compressed_cache", "state_cache"],
}


def caches(ratio: int, **given: object) -> dict[CacheRole, CacheKind]:
    sizes = {"head_dim": 512, "index_head_dim": 128, "sliding_window": 128}
    return layer_caches(ratio, **(sizes | {"dtype": torch.bfloat16} | given))


@pytest.mark.parametrize("device", sorted(DEVICE_CACHES))
@pytest.mark.parametrize("ratio", SUPPORTED_RATIOS)
def test_roles_and_sizes_fit_together(ratio: int, device: str) -> None:
    kinds = caches(ratio, device=device)
    assert [str(role) for role in kinds] == ROLES[ratio]
    for role, kind in kinds.items():
        assert kind.role is role
        assert kind.compress_ratio == ratio
        assert kind.block_tokens % kind.ratio == 0
        assert kind.rows_per_block * kind.ratio == kind.block_tokens
        assert kind.block_bytes == kind.rows_per_block * kind.width * kind.dtype.itemsize
        compressed = role in (CacheRole.COMPRESSED, CacheRole.INDEX_KEY)
        assert kind.ratio == (ratio if compressed else 1)
        assert (kind.window is None) == compressed
        if role in (CacheRole.COMPRESSOR_STATE, CacheRole.INDEX_STATE):
            assert kind.dtype == torch.float32
            # An open entry needs the tokens of its own and of the overlapping window.
            assert kind.window == overlap_of(ratio) * ratio
            own = CacheRole.INDEX_KEY if role is CacheRole.INDEX_STATE else CacheRole.COMPRESSED
            # Key-value and gate, one series per overlapping window.
            assert kind.width == 2 * overlap_of(ratio) * kinds[own].width
    assert kinds[CacheRole.SLIDING_WINDOW].window == 128


@pytest.mark.parametrize(
    ("device", "expected"),
    [("A2", [128, 128, 8, 32]), ("A3", [128, 128, 8, 32]), ("A5", [128, 128, 8, 16])],
)
def test_block_sizes_of_the_npu_families(device: str, expected: list[int]) -> None:
    c4, c128 = caches(4, device=device), caches(128, device=device)
    got = [
        c4[CacheRole.COMPRESSED].block_tokens,
        c4[CacheRole.SLIDING_WINDOW].block_tokens,
        c4[CacheRole.COMPRESSOR_STATE].block_tokens,
        c128[CacheRole.COMPRESSOR_STATE].block_tokens,
    ]
    assert got == expected
    assert default_block_tokens(device) == 128
    assert c4[CacheRole.INDEX_KEY].block_tokens == 128
    assert c128[CacheRole.COMPRESSED].rows_per_block == 1
    assert not DEVICE_CACHES[device].run_here


@pytest.mark.parametrize("device", ["A2", "A5"])
@pytest.mark.parametrize("block", [128, 64, 32])
def test_a_block_size_may_be_asked_for(device: str, block: int) -> None:
    assert caches(4, device=device, block_tokens=block)[CacheRole.COMPRESSED].block_tokens == block
    assert dict(describe(device))[block].compressed == block


def test_dtypes_by_family() -> None:
    def dtypes(device: str) -> list[torch.dtype]:
        kinds = caches(4, device=device, dtype=torch.float16)
        return [kinds[r].dtype for r in (CacheRole.COMPRESSED, CacheRole.INDEX_KEY)]

    assert dtypes("cpu") == [torch.float16, torch.float16]
    assert dtypes("A2") == dtypes("A3") == [torch.bfloat16, torch.int8]
    assert dtypes("A5") == [torch.float8_e4m3fn, torch.float8_e4m3fn]
    assert DEVICE_CACHES["A2"].index_scale_dtype == torch.float16
    assert DEVICE_CACHES["A5"].index_scale_dtype == torch.float32


def test_the_cpu_family_is_the_one_that_runs() -> None:
    assert default_block_tokens("cpu") == 256
    assert [name for name, family in DEVICE_CACHES.items() if family.run_here] == ["cpu"]
    kinds = caches(4, dtype=torch.float32, head_dim=64, index_head_dim=32)
    assert kinds[CacheRole.COMPRESSED].block_bytes == 64 * 64 * 4
    assert kinds[CacheRole.INDEX_STATE].block_bytes == 4 * (4 * 32) * 4


@pytest.mark.parametrize("ratio", [1, 2, 8, 64, -4])
def test_an_unknown_ratio_is_refused(ratio: int) -> None:
    with pytest.raises(InvalidInputError, match=rf"ratio {ratio}.*0, 4, 128.*compress_ratios"):
        caches(ratio)


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"'310P'.*cpu, A2, A5, A3.*310P cannot"):
        caches(4, device="310P")
    with pytest.raises(InvalidInputError, match="'npu'"):
        default_block_tokens("npu")
    with pytest.raises(InvalidInputError, match="'npu'"):
        list(describe("npu"))


@pytest.mark.parametrize(("device", "block"), [("cpu", 128), ("A2", 256), ("A5", 16)])
def test_an_unknown_block_size_is_refused(device: str, block: int) -> None:
    with pytest.raises(
        InvalidInputError, match=rf"block_size={block}.*device {device}.*tokens a block.*unset"
    ):
        caches(4, device=device, block_tokens=block)


def test_every_figure_names_its_source() -> None:
    for device in DEVICE_CACHES:
        assert all(sizes.source for _, sizes in describe(device))


@pytest.mark.parametrize("device", sorted(DEVICE_CACHES))
def test_rows_keep_the_model_s_dtype_if_asked(device: str) -> None:
    """Blocks stay those of the family; states are float32 always."""
    fixed = caches(4, device=device)
    kept = caches(4, device=device, keep_dtype=True)
    for role, kind in kept.items():
        is_state = role in (CacheRole.COMPRESSOR_STATE, CacheRole.INDEX_STATE)
        assert kind.dtype == (torch.float32 if is_state else torch.bfloat16)
        assert kind.block_tokens == fixed[role].block_tokens
