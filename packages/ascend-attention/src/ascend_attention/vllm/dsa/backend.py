"""The DSA attention backend and its metadata builder."""

from __future__ import annotations

from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.v1.attention.backend import AttentionMetadataBuilder, CommonAttentionMetadata
from vllm.v1.kv_cache_interface import KVCacheSpec

from ascend_attention.step import StepLayout
from ascend_attention.vllm.compat import PagedRowsBackend
from ascend_attention.vllm.dsa.metadata import AscendDSAMetadata, build_metadata

_latest: StepLayout | None = None


def _step_layout(
    query_start: torch.Tensor, seq_lens: torch.Tensor, device: torch.device
) -> StepLayout:
    """The step's layout, built by the first of the builders that ask for the same batch."""
    global _latest
    latest = _latest
    if (
        latest is None
        or latest.position.device != device
        or not torch.equal(latest.query_start, query_start)
        or not torch.equal(latest.seq_lens, seq_lens)
    ):
        latest = _latest = StepLayout.build(query_start, seq_lens, device)
    return latest


class AscendDSAMetadataBuilder(AttentionMetadataBuilder[AscendDSAMetadata]):
    """Turns the scheduler's ragged output into fixed indices, once per step and cache kind."""

    # Any query length is one code path, so decodes need not be sorted to the front.
    reorder_batch_threshold = None

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

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> AscendDSAMetadata:
        common = common_attn_metadata
        requests = common.num_reqs
        return build_metadata(
            self.kind,
            self._layout(common),
            common.block_table_tensor[:requests],
            common.slot_mapping,
        )

    def _layout(self, common: CommonAttentionMetadata) -> StepLayout:
        requests = common.num_reqs
        query_start = common.query_start_loc_cpu[: requests + 1].long()
        seq_lens = common.seq_lens[:requests]
        if not seq_lens.is_cpu:
            # What the host knows is not fetched from the device. Between two draft tokens it does
            # not know how many drafts were accepted; a sliding window can do without.
            if common._seq_lens_cpu is not None:
                seq_lens = common._seq_lens_cpu[:requests]
            elif self.kind.compress_ratio == 0 and bool((query_start.diff() == 1).all()):
                return StepLayout.one_token_each(seq_lens)
        return _step_layout(query_start, seq_lens.cpu().long(), common.seq_lens.device)


class AscendDSABackend(PagedRowsBackend):
    """Backend of every DeepSeek-V4 cache."""

    @staticmethod
    def get_name() -> str:
        return "ASCEND_DSA"

    @staticmethod
    def get_builder_cls() -> type[AscendDSAMetadataBuilder]:
        return AscendDSAMetadataBuilder

    @staticmethod
    def get_impl_cls() -> type[Any]:
        from ascend_attention.vllm.dsa.impl import AscendDSAImpl

        return AscendDSAImpl
