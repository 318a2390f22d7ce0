"""The table of caches: which a layer has, their sizes, and what is refused."""

from __future__ import annotations

import pytest
import torch
from ascend_attention.caches import (
    DEVICE_CACHES,
    PAGE_ALIGNMENT,
    SUPPORTED_RATIOS,
    CacheKind,
    CacheRole,
    RowScales,
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
    sizes = {"head_dim": 512, "rotary_dim": 64, "index_head_dim": 128, "sliding_window": 128}
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
        assert 0 <= kind.block_bytes - kind.rows_per_block * kind.row_bytes < PAGE_ALIGNMENT
        assert kind.block_bytes % PAGE_ALIGNMENT == 0
        if kind.scales is None:
            assert kind.row_bytes == kind.width * kind.dtype.itemsize
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
    [("A2", [256, 64, 4, 16]), ("A3", [256, 64, 4, 16]), ("A5", [256, 64, 4, 8])],
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
    assert default_block_tokens(device) == 256
    assert c4[CacheRole.INDEX_KEY].block_tokens == 256
    assert c128[CacheRole.COMPRESSED].rows_per_block == 2
    assert not DEVICE_CACHES[device].run_here


@pytest.mark.parametrize("device", ["A2", "A5"])
@pytest.mark.parametrize("block", [256, 512, 128])
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


def test_scales_by_family() -> None:
    """int8 keys with float16 scales; on A5 float8 keys with float32 scales, and packed rows."""
    scale = {
        (device, str(role)): kind.scales
        for device in ("A2", "A5")
        for role, kind in caches(4, device=device).items()
    }
    assert scale["A2", "index_cache"] == RowScales(torch.float16, 1)
    assert scale["A5", "index_cache"] == RowScales(torch.float32, 1)
    packed = RowScales(torch.uint8, 7, 64)
    assert scale["A5", "swa_cache"] == scale["A5", "compressed_cache"] == packed
    others = {key for key, value in scale.items() if value is None}
    assert {role for device, role in others if device == "A2"} == {
        "swa_cache", "compressed_cache", "state_cache", "index_state_cache"
    }  # fmt: skip
    assert {role for device, role in others if device == "A5"} == {
        "state_cache", "index_state_cache"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("device", "block", "key_page", "entry_page", "window_page"),
    [
        ("A2", 512, 16640, 131072, 131072),  # the pages of vllm-ascend
        ("A2", 256, 8320, 65536, 65536),
        ("A2", 128, 4160, 32768, 32768),
        ("A5", 512, 128 * 132, 128 * 640, 128 * 640),
        ("A5", 128, 32 * 132, 32 * 640, 32 * 640),
    ],
)
def test_pages_hold_scales_and_padding(
    device: str, block: int, key_page: int, entry_page: int, window_page: int
) -> None:
    kinds = caches(4, device=device, block_tokens=block)
    assert kinds[CacheRole.INDEX_KEY].block_bytes == key_page
    assert kinds[CacheRole.COMPRESSED].block_bytes == entry_page
    assert kinds[CacheRole.SLIDING_WINDOW].block_bytes == window_page


def test_a_page_is_padded_where_what_follows_would_not_be_aligned() -> None:
    kind = caches(128, device="A2", block_tokens=128, head_dim=24)[CacheRole.COMPRESSED]
    assert (kind.rows_per_block, kind.row_bytes, kind.block_bytes) == (1, 48, 64)


@pytest.mark.parametrize("device", ["A2", "A5"])
def test_keys_and_scales_are_views_of_one_page(device: str) -> None:
    """All keys of a block, then all its scales; nothing of the next block."""
    kind = caches(4, device=device, block_tokens=128, index_head_dim=6)[CacheRole.INDEX_KEY]
    rows, size = kind.rows_per_block, kind.row_bytes
    slab = torch.zeros(3, kind.block_bytes + 32, dtype=torch.uint8)
    page = slab[:, 32 : 32 + rows * size].unflatten(1, (rows, size))
    keys, scales = kind.views(page)
    assert scales is not None
    assert kind.scales is not None
    assert (keys.shape, keys.dtype) == ((3, rows, 6), kind.dtype)
    assert (scales.shape, scales.dtype) == ((3, rows), kind.scales.dtype)
    keys.view(torch.uint8)[1, 2] = 7
    scales[1, 2] = 1.0
    item = kind.scales.dtype.itemsize
    touched = slab.nonzero()
    assert touched[:, 0].unique().tolist() == [1]
    columns = touched[:, 1] - 32
    assert columns[:6].tolist() == list(range(12, 18))
    first = rows * 6 + 2 * item
    assert bool(((columns[6:] >= first) & (columns[6:] < first + item)).all())


def test_a_page_without_scales_is_its_own_view() -> None:
    for kind in (caches(4)[CacheRole.COMPRESSED], caches(4, device="A5")[CacheRole.COMPRESSED]):
        page = torch.zeros(2, kind.rows_per_block, 640, dtype=torch.uint8)
        assert kind.views(page) == (page, None)


def test_rows_that_cannot_be_packed_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"63 values.*model's dtype"):
        caches(4, device="A5", head_dim=63)
    assert caches(4, device="A5", head_dim=63, rotary_dim=63, keep_dtype=True)


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


@pytest.mark.parametrize(("device", "block"), [("cpu", 128), ("A2", 64), ("A5", 16)])
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
        assert kind.scales is None
        assert kind.block_tokens == fixed[role].block_tokens
