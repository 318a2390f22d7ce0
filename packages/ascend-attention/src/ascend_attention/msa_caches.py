"""The caches of MiniMax-M3 as data: keys and values of GQA, and keys of the indexer of blocks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from ascend_ops_core.errors import InvalidInputError

from ascend_attention.caches import CacheKind, CacheRole

NPU_BLOCK_UNITS = {"A2": 16, "A3": 16, "A5": 32}
"""Tokens of which a block is a multiple, since kernels multiply tiles of as many rows; the released
model has blocks of 128 (:mod:`ascend_attention.ops.block_sparse_attention`)."""


@dataclass(frozen=True)
class KeyValueKind(CacheKind):
    """A cache of keys and values.

    Attributes:
        num_kv_heads: heads on this rank.
        head_dim: width of each.
    """

    num_kv_heads: int = 1
    head_dim: int = 0


def msa_caches(
    *,
    num_kv_heads: int,
    head_dim: int,
    index_head_dim: int | None,
    dtype: torch.dtype,
    block_tokens: int,
    device: str = "cpu",
) -> dict[CacheRole, CacheKind]:
    """Caches of a layer: a key and a value for every token and head, and an indexer's key.

    A block of the caches is what the indexer selects, so that a selection names pages. All have
    the model's dtype on every device family.

    Args:
        num_kv_heads: key-value heads on this rank.
        head_dim: width of each.
        index_head_dim: width of an index key; None for a layer that attends to all blocks.
        dtype: the model's dtype.
        block_tokens: tokens per block.
        device: ``cpu``, or a device family.

    Raises:
        InvalidInputError: a block that the device's kernels do not take.
    """
    check_block(block_tokens, device)
    width = 2 * num_kv_heads * head_dim
    caches: dict[CacheRole, CacheKind] = {
        CacheRole.KEY_VALUE: KeyValueKind(
            CacheRole.KEY_VALUE,
            1,
            0,
            block_tokens,
            width,
            dtype,
            None,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
        )
    }
    if index_head_dim is not None:
        role = CacheRole.INDEX_KEY
        caches[role] = CacheKind(role, 1, 0, block_tokens, index_head_dim, dtype, None)
    return caches


def check_block(block_tokens: int, device: str) -> None:
    """Refuse blocks that a device's kernels do not take.

    Raises:
        InvalidInputError: such a block.
    """
    unit = NPU_BLOCK_UNITS.get(device, 1)
    if block_tokens % unit:
        raise InvalidInputError(
            f"a block of {block_tokens} tokens (sparse_block_size, or --block-size)",
            f"kernels of {device} take blocks of a multiple of {unit} tokens",
            "Serve the model on a CPU, or another checkpoint.",
        )
