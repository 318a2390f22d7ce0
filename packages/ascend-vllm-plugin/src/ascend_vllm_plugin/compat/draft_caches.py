"""Lets drafts with ordinary attention have caches beside DeepSeek-V4's.

Upstream symbol: ``vllm.v1.core.kv_cache_utils.group_and_unify_kv_cache_specs`` (0.27.1). Beside
windows of latent rows it sorts caches of latent rows alone into groups and leaves all others out,
so an Eagle3 or DFlash draft's layer would have no cache. Here keys and values join the group whose
caches keep every token: blocks of both are as many tokens, and each has its place in a block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ascend_ops_core.errors import InvalidInputError
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
)

__all__ = ["KeyValueSpec", "keep_draft_caches"]

_NAME = "group_and_unify_kv_cache_specs"
Groups = Any
Group = Callable[[dict[str, KVCacheSpec]], Groups]


@dataclass(frozen=True, kw_only=True)
class KeyValueSpec(MLAAttentionSpec):
    """Keys and values of ``head_size`` each, which vLLM groups as it groups latent rows."""

    @property
    def real_page_size_bytes(self) -> int:
        """Bytes of a block: latent rows are keys and values at once, these are not."""
        return 2 * super().real_page_size_bytes


class WithDrafts:
    """Called like the function of vLLM that it stands in for.

    Args:
        upstream: groups latent rows.
    """

    def __init__(self, upstream: Group) -> None:
        self.upstream = upstream

    def __call__(self, kv_cache_spec: dict[str, KVCacheSpec]) -> Groups:
        """Groups of all caches; None where vLLM has another way to group them.

        Args:
            kv_cache_spec: of every layer.

        Raises:
            InvalidInputError: a layer's cache can have no place beside windows of latent rows.
        """
        if not any(isinstance(spec, SlidingWindowMLASpec) for spec in kv_cache_spec.values()):
            return self.upstream(kv_cache_spec)
        return self.upstream({n: _as_latent(n, spec) for n, spec in kv_cache_spec.items()})


def _as_latent(name: str, spec: KVCacheSpec) -> KVCacheSpec:
    if isinstance(spec, SlidingWindowMLASpec | MLAAttentionSpec):
        return spec
    if type(spec) is not FullAttentionSpec or spec.head_size_v != spec.head_size:
        raise InvalidInputError(
            f"layer {name} with a cache of {type(spec).__name__}",
            "beside compressed caches a draft's layers keep keys and values of one width, of every "
            "token",
            "Take a draft without sliding attention, or the target's own (method mtp or dspark).",
        )
    return KeyValueSpec(
        block_size=spec.block_size,
        num_kv_heads=spec.num_kv_heads,
        head_size=spec.head_size,
        dtype=spec.dtype,
        kv_quant_mode=spec.kv_quant_mode,
        page_size_padded=spec.page_size_padded,
    )


def keep_draft_caches() -> None:
    """Put :class:`WithDrafts` where vLLM groups caches; may be called repeatedly.

    Raises:
        AttributeError: vLLM has no function of that name in that module any more.
    """
    from vllm.v1.core import kv_cache_utils

    upstream = getattr(kv_cache_utils, _NAME)
    if not isinstance(upstream, WithDrafts):
        setattr(kv_cache_utils, _NAME, WithDrafts(upstream))
