"""The caches of DeepSeek models as data: what a row holds, how rows are paged, on which device.

vLLM's specs, the tensors' shapes and any memory estimate come from this one table. A compressed
layer with ratio ``r`` stores one row for every ``r`` tokens; compressor states store one row per
token, but only for the window that an open entry may still need.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from ascend_ops_core.errors import InvalidInputError

from ascend_attention.ops.packed_rows import check_row, groups_of, packed_bytes
from ascend_attention.ops.quantized_mla import row_bytes

PAGE_ALIGNMENT = 32
"""Pages are padded to a multiple of these bytes: the unit of an NPU's unified buffer."""

SUPPORTED_RATIOS = (0, 4, 128)
"""Compress ratios that DeepSeek-V4 defines: sliding window only, c4, c128."""


class CacheRole(StrEnum):
    """What a row of a cache is."""

    SLIDING_WINDOW = "swa_cache"
    COMPRESSED = "compressed_cache"
    INDEX_KEY = "index_cache"
    COMPRESSOR_STATE = "state_cache"
    INDEX_STATE = "index_state_cache"
    LATENT = "latent_cache"
    KEY_VALUE = "attn"
    RECURRENT_STATE = "states"


@dataclass(frozen=True)
class BlockSizes:
    """Tokens per block of each kind of cache.

    Attributes:
        compressed: blocks of compressed entries and indexer keys.
        sliding_window: blocks of raw key-value rows.
        state_c4: blocks of c4 compressor states.
        state_c128: blocks of c128 compressor states.
        source: where the figures come from.
    """

    compressed: int
    sliding_window: int
    state_c4: int
    state_c128: int
    source: str


@dataclass(frozen=True)
class DeviceCaches:
    """Paging and dtypes of one device family.

    Attributes:
        block_sizes: by the size of a compressed block that the user may ask for; the first
            entry is the default.
        kv_dtype: dtype of key-value rows, or None for the model's own. Rows of float8_e4m3fn are
            packed: see :mod:`ascend_attention.ops.packed_rows`.
        index_dtype: dtype of indexer keys, or None for the model's own.
        index_scale_dtype: dtype of one scale per indexer key, or None for unscaled keys.
        latent_blocks: tokens per block of MLA latents, the default first.
        run_here: whether the project runs this family's layout (the others are not run on
            hardware).
    """

    block_sizes: dict[int, BlockSizes]
    kv_dtype: torch.dtype | None
    index_dtype: torch.dtype | None
    index_scale_dtype: torch.dtype | None
    run_here: bool
    latent_blocks: tuple[int, ...] = (128, 16)


_UPSTREAM = "vLLM 0.27.1, vllm/models/deepseek_v4"
# vllm-ascend counts rows: its pages of 16640 and 131072 bytes hold 128 int8 keys and 128 bfloat16
# rows. vLLM counts tokens, of which a c4 row stands for four, and gives all compressed caches of a
# model one block size. Read so, every group of caches fills about the same part of a pool block.
_ASCEND = "vllm-ascend main 2026-08, models/layer/attention/dsv4_block_sizes.py, c4 rows as tokens"

DEVICE_CACHES: dict[str, DeviceCaches] = {
    "cpu": DeviceCaches(
        {256: BlockSizes(256, 64, 4, 8, _UPSTREAM)}, None, None, None, True, (128, 64, 32, 16)
    ),
    "A2": DeviceCaches(
        {
            256: BlockSizes(256, 64, 4, 16, _ASCEND),
            512: BlockSizes(512, 128, 8, 32, _ASCEND),
            128: BlockSizes(128, 32, 2, 8, _ASCEND),
        },
        torch.bfloat16,
        torch.int8,
        torch.float16,
        False,
    ),
    "A5": DeviceCaches(
        {
            256: BlockSizes(256, 64, 4, 8, _ASCEND),
            512: BlockSizes(512, 128, 8, 16, _ASCEND),
            128: BlockSizes(128, 32, 2, 4, _ASCEND),
        },
        torch.float8_e4m3fn,
        torch.float8_e4m3fn,
        torch.float32,
        False,
        # The kernel that attends to 16-bit latents reads tiles of 32 rows there.
        (128, 32),
    ),
}
DEVICE_CACHES["A3"] = DEVICE_CACHES["A2"]


@dataclass(frozen=True)
class RowScales:
    """Scales of a quantised row.

    Attributes:
        dtype: dtype of a scale; uint8 holds exponents of powers of two.
        count: scales of a row.
        rotary: None where the scales of a block follow the values of all its rows. Otherwise every
            row is packed with its own scales, and this many values at its end stay in bfloat16.
    """

    dtype: torch.dtype
    count: int
    rotary: int | None = None


@dataclass(frozen=True)
class CacheKind:
    """One paged cache of one layer.

    Attributes:
        role: what a row is.
        ratio: tokens per row; 1 where every token has a row.
        compress_ratio: ratio of the layer that the cache serves (0, 4 or 128).
        block_tokens: tokens per block.
        width: values per row.
        dtype: dtype of a row's values; of the quantised ones where a row is packed.
        window: tokens that must stay cached behind the current one, or None for all.
        scales: of a quantised row, or None.
    """

    role: CacheRole
    ratio: int
    compress_ratio: int
    block_tokens: int
    width: int
    dtype: torch.dtype
    window: int | None
    scales: RowScales | None = None

    @property
    def rows_per_block(self) -> int:
        """Rows that one block holds."""
        return self.block_tokens // self.ratio

    @property
    def row_bytes(self) -> int:
        """Bytes that a row takes of its block, its scales included."""
        values = self.width * self.dtype.itemsize
        if self.scales is None:
            return values
        if self.scales.rotary is not None:
            return packed_bytes(self.width, self.scales.rotary)
        return values + self.scales.count * self.scales.dtype.itemsize

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, padded so that whatever follows it is aligned."""
        return -(-self.rows_per_block * self.row_bytes // PAGE_ALIGNMENT) * PAGE_ALIGNMENT

    def views(self, page: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rows and scales in the memory of this cache.

        Args:
            page: ``[B, P, row_bytes]`` uint8 for a quantised cache, rows side by side and a stride
                of blocks that is a multiple of 4; ``[B, P, width]`` for another.

        Returns:
            ``[B, P, width]`` rows in their dtype and ``[B, P]`` scales of quantised indexer keys;
            otherwise the page itself and None, also where rows are packed.
        """
        scales = self.scales
        if scales is None or scales.rotary is not None:
            return page, None
        flat = page.flatten(1)
        end = page.shape[1] * self.width * self.dtype.itemsize
        rows = flat[:, :end].view(self.dtype).unflatten(1, (page.shape[1], self.width))
        return rows, flat[:, end:].view(scales.dtype)


def overlap_of(ratio: int) -> int:
    """Windows that one compressed entry reads: c4 entries overlap, c128 entries do not."""
    return 2 if ratio == 4 else 1


def layer_caches(
    compress_ratio: int,
    *,
    head_dim: int,
    rotary_dim: int,
    index_head_dim: int,
    sliding_window: int,
    dtype: torch.dtype,
    device: str = "cpu",
    block_tokens: int | None = None,
    keep_dtype: bool = False,
) -> dict[CacheRole, CacheKind]:
    """Caches of a DeepSeek-V4 layer.

    Args:
        compress_ratio: 0 (sliding window only), 4 or 128.
        head_dim: width of the shared key-value head.
        rotary_dim: values at the end of a key-value row that are rotated, which packed rows keep in
            bfloat16.
        index_head_dim: width of an indexer key; used by ratio 4.
        sliding_window: tokens of raw context.
        dtype: the model's dtype, used where the device family does not fix one.
        device: a key of :data:`DEVICE_CACHES`.
        block_tokens: tokens per compressed block, or None for the device's default.
        keep_dtype: rows keep the model's dtype, whatever the device family fixes.

    Returns:
        Kinds by role, in the order in which vLLM should see them.

    Raises:
        InvalidInputError: an unknown ratio, device or block size, or rows that the family packs and
            that cannot be packed.
    """
    check_ratio(compress_ratio)
    family = _family(device)
    sizes = _sizes(family, device, block_tokens)
    kv_dtype, kv_scales = _key_value_rows(family, dtype, head_dim, rotary_dim, keep_dtype)
    caches = {
        CacheRole.SLIDING_WINDOW: CacheKind(
            CacheRole.SLIDING_WINDOW,
            1,
            compress_ratio,
            sizes.sliding_window,
            head_dim,
            kv_dtype,
            sliding_window,
            kv_scales,
        )
    }
    if compress_ratio == 0:
        return caches
    state_block = sizes.state_c4 if compress_ratio == 4 else sizes.state_c128
    widths = {CacheRole.COMPRESSED: head_dim}
    if compress_ratio == 4:
        widths[CacheRole.INDEX_KEY] = index_head_dim
    overlap = overlap_of(compress_ratio)
    for role, width in widths.items():
        is_key = role is CacheRole.INDEX_KEY
        row_dtype, scales = kv_dtype, kv_scales
        if is_key:
            row_dtype, scales = _index_rows(family, dtype, keep_dtype)
        caches[role] = CacheKind(
            role,
            compress_ratio,
            compress_ratio,
            sizes.compressed,
            width,
            row_dtype,
            None,
            scales,
        )
        state = CacheRole.INDEX_STATE if is_key else CacheRole.COMPRESSOR_STATE
        caches[state] = CacheKind(
            state,
            1,
            compress_ratio,
            state_block,
            2 * overlap * width,
            torch.float32,
            overlap * compress_ratio,
        )
    return caches


def mla_caches(
    *,
    kv_lora_rank: int,
    rotary_dim: int,
    dtype: torch.dtype,
    device: str = "cpu",
    block_tokens: int | None = None,
) -> dict[CacheRole, CacheKind]:
    """Caches of a layer of multi-head latent attention (DeepSeek-V3): one row for every token.

    Blocks of 128 and 16 tokens are what ``npu_fused_infer_attention_score`` and
    ``npu_mla_prolog_v3`` take on NPUs.

    Args:
        kv_lora_rank: width of a latent.
        rotary_dim: width of the key that all heads share, which follows it.
        dtype: the model's dtype.
        device: a key of :data:`DEVICE_CACHES`.
        block_tokens: tokens per block, or None for the device's default.

    Raises:
        InvalidInputError: an unknown device or block size.
    """
    sizes = latent_blocks(device)
    if block_tokens is not None and block_tokens not in sizes:
        raise InvalidInputError(
            f"block_size={block_tokens}",
            f"device {device} serves latent caches with {', '.join(map(str, sizes))} tokens a "
            "block",
            "Leave block_size unset or use one of these.",
        )
    tokens = sizes[0] if block_tokens is None else block_tokens
    width = kv_lora_rank + rotary_dim
    kind = CacheKind(CacheRole.LATENT, 1, 0, tokens, width, dtype, None)
    return {CacheRole.LATENT: kind}


def sparse_mla_caches(
    *,
    kv_lora_rank: int,
    rotary_dim: int,
    index_head_dim: int | None,
    dtype: torch.dtype,
    device: str = "cpu",
    block_tokens: int | None = None,
    keep_dtype: bool = False,
    int8_latents: bool = False,
) -> dict[CacheRole, CacheKind]:
    """Caches of a layer of sparse latent attention (DeepSeek-V3.2, GLM-5).

    Those of :func:`mla_caches` and, in a layer with an indexer, one key for every token: in eight
    bits with a scale where the family fixes it so.

    Args:
        kv_lora_rank: width of a latent.
        rotary_dim: width of the key that all heads share, which follows it.
        index_head_dim: width of an indexer key; None for a layer without an indexer.
        dtype: the model's dtype.
        device: a key of :data:`DEVICE_CACHES`.
        block_tokens: tokens per block, or None for the device's default.
        keep_dtype: keys keep the model's dtype, whatever the device family fixes.
        int8_latents: rows are records of bytes (:mod:`ascend_attention.ops.quantized_mla`).

    Raises:
        InvalidInputError: an unknown device or block size, or latents that records do not hold.
    """
    caches = mla_caches(
        kv_lora_rank=kv_lora_rank,
        rotary_dim=rotary_dim,
        dtype=dtype,
        device=device,
        block_tokens=block_tokens,
    )
    if int8_latents:
        latent = caches[CacheRole.LATENT]
        width = row_bytes(kv_lora_rank, rotary_dim)
        caches[CacheRole.LATENT] = replace(latent, width=width, dtype=torch.int8)
    if index_head_dim is not None:
        key_dtype, scales = _index_rows(_family(device), dtype, keep_dtype)
        caches[CacheRole.INDEX_KEY] = CacheKind(
            CacheRole.INDEX_KEY,
            1,
            0,
            caches[CacheRole.LATENT].block_tokens,
            index_head_dim,
            key_dtype,
            None,
            scales,
        )
    return caches


def index_views(page: torch.Tensor, kind: CacheKind) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Keys ``[B, P, D]`` and scales ``[B, P]`` in the memory of a cache of indexer keys.

    torch_npu takes both as tensors without gaps. So where the cache's memory is its own, all keys
    lie in front of all scales; in a slab that caches share a block's scales follow its keys.

    Args:
        page: ``[B, P, D]``, or ``[B, P, row_bytes]`` uint8 where keys have scales.
        kind: the cache.
    """
    if kind.scales is None or not page.is_contiguous():
        return kind.views(page)
    blocks, rows, _ = page.shape
    flat = page.view(-1)
    end = blocks * rows * kind.width * kind.dtype.itemsize
    keys = flat[:end].view(kind.dtype).view(blocks, rows, kind.width)
    return keys, flat[end:].view(kind.scales.dtype).view(blocks, rows)


def latent_blocks(device: str) -> tuple[int, ...]:
    """Tokens per block that latent caches may have on a device family, the default first."""
    return _family(device).latent_blocks


def latent_views(page: torch.Tensor, kv_lora_rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Latents ``[B, P, L]`` and rotated keys ``[B, P, R]`` in the memory of a latent cache.

    torch_npu takes both as tensors without gaps. So where the cache's memory is its own, all
    latents lie in front of all rotated keys; in a slab that caches share they lie side by side.

    Args:
        page: ``[B, P, L + R]``.
        kv_lora_rank: ``L``.
    """
    if not page.is_contiguous():
        return page[..., :kv_lora_rank], page[..., kv_lora_rank:]
    blocks, rows, width = page.shape
    flat = page.view(-1)
    end = blocks * rows * kv_lora_rank
    return (
        flat[:end].view(blocks, rows, kv_lora_rank),
        flat[end:].view(blocks, rows, width - kv_lora_rank),
    )


def _key_value_rows(
    family: DeviceCaches, dtype: torch.dtype, width: int, rotary_dim: int, keep_dtype: bool
) -> tuple[torch.dtype, RowScales | None]:
    if keep_dtype or family.kv_dtype is None:
        return dtype, None
    if family.kv_dtype.itemsize > 1:
        return family.kv_dtype, None
    check_row(width, rotary_dim)
    return family.kv_dtype, RowScales(torch.uint8, groups_of(width, rotary_dim), rotary_dim)


def _index_rows(
    family: DeviceCaches, dtype: torch.dtype, keep_dtype: bool
) -> tuple[torch.dtype, RowScales | None]:
    if keep_dtype or family.index_dtype is None:
        return dtype, None
    if family.index_scale_dtype is None:
        return family.index_dtype, None
    return family.index_dtype, RowScales(family.index_scale_dtype, 1)


def default_block_tokens(device: str) -> int:
    """Tokens per compressed block that a device family uses unless told otherwise."""
    return next(iter(_family(device).block_sizes))


def check_ratio(compress_ratio: int) -> None:
    """Refuse a compress ratio that DeepSeek-V4 does not define."""
    if compress_ratio not in SUPPORTED_RATIOS:
        raise InvalidInputError(
            f"compress ratio {compress_ratio}",
            f"DeepSeek-V4 defines {', '.join(map(str, SUPPORTED_RATIOS))}",
            "Correct compress_ratios in the model's config.json.",
        )


def describe(device: str) -> Iterator[tuple[int, BlockSizes]]:
    """Every block-size row of a device family, for documentation and tools."""
    yield from _family(device).block_sizes.items()


def _family(device: str) -> DeviceCaches:
    if device not in DEVICE_CACHES:
        raise InvalidInputError(
            f"device family {device!r}",
            f"known are {', '.join(DEVICE_CACHES)}",
            "Use one of these; Ascend 310P cannot serve sparse-attention models.",
        )
    return DEVICE_CACHES[device]


def _sizes(family: DeviceCaches, device: str, block_tokens: int | None) -> BlockSizes:
    if block_tokens is None:
        block_tokens = next(iter(family.block_sizes))
    if block_tokens not in family.block_sizes:
        raise InvalidInputError(
            f"block_size={block_tokens}",
            f"device {device} serves compressed caches with "
            f"{', '.join(map(str, family.block_sizes))} tokens a block",
            "Leave block_size unset or use one of these.",
        )
    return family.block_sizes[block_tokens]
