"""The DSA attention backend and its metadata builder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from ascend_ops_core.errors import InvalidInputError
from vllm.config import VllmConfig
from vllm.v1.attention.backend import (
    AttentionCGSupport,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.kv_cache_interface import KVCacheSpec

from ascend_attention.step import BlockLayout, StepLayout, UniformLayout
from ascend_attention.vllm.compat import PagedRowsBackend
from ascend_attention.vllm.dsa.metadata import DeferredDSAMetadata, DeferredMetadata


class _Batch(NamedTuple):
    """The tensors that a step's layout is built from, all builders of a step being given the same.

    Attributes:
        query_start: ``[>= R + 1]`` on the host.
        seq_lens: ``[>= R]`` on the host.
        requests: ``R``.
        device: where the layout is needed.
    """

    query_start: torch.Tensor
    seq_lens: torch.Tensor
    requests: int
    device: torch.device

    def versions(self) -> tuple[int, int] | None:
        """How often the tensors have been written; None where torch does not count."""
        if self.query_start.is_inference() or self.seq_lens.is_inference():
            return None
        return self.query_start._version, self.seq_lens._version


class _Latest(NamedTuple):
    batch: _Batch
    versions: tuple[int, int] | None
    layout: StepLayout


_latest: _Latest | None = None


def _step_layout(batch: _Batch) -> StepLayout:
    """The step's layout, built by the first of the builders that ask for the same batch."""
    global _latest
    versions = batch.versions()
    # Comparing the values costs nearly as much as a layout.
    if (
        _latest is not None
        and versions is not None
        and versions == _latest.versions
        and batch.query_start is _latest.batch.query_start
        and batch.seq_lens is _latest.batch.seq_lens
        and batch.requests == _latest.batch.requests
        and batch.device == _latest.batch.device
    ):
        return _latest.layout
    query_start = batch.query_start[: batch.requests + 1].long()
    seq_lens = batch.seq_lens[: batch.requests].long()
    layout = None if _latest is None else _latest.layout
    if (
        layout is None
        or layout.position.device != batch.device
        or not torch.equal(layout.query_start, query_start)
        or not torch.equal(layout.seq_lens, seq_lens)
    ):
        layout = StepLayout.build(query_start, seq_lens, batch.device)
    _latest = _Latest(batch, versions, layout)
    return layout


class AscendDSAMetadataBuilder(AttentionMetadataBuilder[Any]):
    """Turns the scheduler's ragged output into fixed indices, once per step and cache kind."""

    # Any query length is one code path, so decodes need not be sorted to the front.
    reorder_batch_threshold = None
    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH

    def __init__(
        self,
        kv_cache_spec: KVCacheSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        layers = vllm_config.compilation_config.static_forward_context
        self.kind = layers[layer_names[0]].kind
        self.max_context = vllm_config.model_config.max_model_len

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> DeferredMetadata[Any]:
        return self._deferred(common_attn_metadata, lambda: self._layout(common_attn_metadata))

    def build_for_cudagraph_capture(
        self, common_attn_metadata: CommonAttentionMetadata
    ) -> DeferredMetadata[Any]:
        """Metadata that a graph computes from vLLM's own buffers, whatever a step puts there."""
        common = common_attn_metadata
        lens = common.seq_lens[: common.num_reqs]
        return self._deferred(
            common, lambda: UniformLayout(lens, common.max_query_len, self.max_context)
        )

    def _deferred(
        self, common: CommonAttentionMetadata, layout: Callable[[], StepLayout]
    ) -> DeferredMetadata[Any]:
        table = common.block_table_tensor[: common.num_reqs]
        return DeferredDSAMetadata(self.kind, layout, table, common.slot_mapping)

    def _layout(self, common: CommonAttentionMetadata) -> StepLayout:
        requests, seq_lens = common.num_reqs, common.seq_lens
        if not common.causal:
            return self._blocks(common)
        if not seq_lens.is_cpu:
            # What the host knows is not fetched from the device. Between two draft tokens it does
            # not know how many drafts were accepted; a sliding window can do without.
            query_lens = common.query_start_loc_cpu[: requests + 1].diff()
            if common._seq_lens_cpu is not None:
                seq_lens = common._seq_lens_cpu
            elif self.kind.compress_ratio == 0 and bool((query_lens == 1).all()):
                return UniformLayout(seq_lens[:requests], 1, self.max_context)
            else:
                seq_lens = seq_lens.cpu()
        device = common.seq_lens.device
        return _step_layout(_Batch(common.query_start_loc_cpu, seq_lens, requests, device))

    def _blocks(self, common: CommonAttentionMetadata) -> BlockLayout:
        if self.kind.compress_ratio:
            raise InvalidInputError(
                f"a layer of ratio {self.kind.compress_ratio} whose tokens see those behind them",
                "compressed entries hold what is in front of a token",
                "Give a block draft layers with a sliding window alone.",
            )
        lens = common.seq_lens[: common.num_reqs]
        return BlockLayout(lens, common.max_query_len, self.max_context, common.slot_mapping)


class AscendDSABackend(PagedRowsBackend):
    """Backend of every DeepSeek-V4 cache."""

    @staticmethod
    def get_name() -> str:
        return "ASCEND_DSA"

    @classmethod
    def supports_non_causal(cls) -> bool:
        """In layers with a sliding window alone."""
        return True

    @staticmethod
    def get_builder_cls() -> type[AscendDSAMetadataBuilder]:
        return AscendDSAMetadataBuilder

    @staticmethod
    def get_impl_cls() -> type[Any]:
        from ascend_attention.vllm.dsa.impl import AscendDSAImpl

        return AscendDSAImpl
