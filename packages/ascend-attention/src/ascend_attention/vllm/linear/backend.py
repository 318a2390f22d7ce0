"""The backend of layers with a recurrent state, and its metadata builder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.v1.attention.backend import AttentionCGSupport, CommonAttentionMetadata
from vllm.v1.attention.backends.gdn_attn import GDNAttentionBackend, GDNAttentionMetadataBuilder
from vllm.v1.kv_cache_interface import MambaSpec

from ascend_attention.ops.linear_states import clear_states
from ascend_attention.step import to_device
from ascend_attention.vllm.dsa.metadata import DeferredMetadata
from ascend_attention.vllm.linear.metadata import (
    AscendGDNMetadata,
    StepRequests,
    build_metadata,
    build_uniform_metadata,
)

Deferred = DeferredMetadata[AscendGDNMetadata]


class AscendGDNAttentionMetadataBuilder(GDNAttentionMetadataBuilder):
    """Which requests of a step decode and which prefill, and where their states are.

    Everything is told by the host's numbers; the device is never waited for. vLLM gives a builder
    of this class the drafts of a step, and how many the last step accepted.

    Attributes:
        accepted: ``[requests]`` int32, what the last step accepted, in a place that captured graphs
            read; None without drafts.
    """

    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH

    def __init__(
        self,
        kv_cache_spec: MambaSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        # Not the constructor of vLLM's GDN builder, which chooses among kernels for CUDA.
        super(GDNAttentionMetadataBuilder, self).__init__(
            kv_cache_spec, layer_names, vllm_config, device
        )
        self.kv_cache_spec = kv_cache_spec
        self.drafts = kv_cache_spec.num_speculative_blocks
        self.aligned = vllm_config.cache_config.mamba_cache_mode == "align"
        # Decodes and drafts lie in front, so that both segments are slices.
        self.reorder_batch_threshold = 1 + self.drafts
        self.accepted: torch.Tensor | None = None
        if self.drafts:
            requests = vllm_config.scheduler_config.max_num_seqs
            self.accepted = torch.ones(requests, dtype=torch.int32, device=device)
        self._runners: torch.Tensor | None = None
        self._layers = vllm_config.compilation_config.static_forward_context

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        num_accepted_tokens: torch.Tensor | None = None,
        num_decode_draft_tokens_cpu: torch.Tensor | None = None,
        fast_build: bool = False,
    ) -> Deferred:
        common = common_attn_metadata
        requests = self._requests(common, num_decode_draft_tokens_cpu)
        self._take_accepted(common.num_reqs, num_accepted_tokens)
        slots = self._slots(common)
        self._clear(requests.fresh(), slots)
        accepted = None if self.accepted is None else self.accepted[: common.num_reqs]
        return DeferredMetadata(lambda: build_metadata(requests, slots(), accepted))

    def build_for_cudagraph_capture(
        self, common_attn_metadata: CommonAttentionMetadata
    ) -> Deferred:
        """Metadata that a graph computes from vLLM's own buffers, whatever a step puts there.

        Every request of a captured step has the same number of tokens; the states of those that pad
        a batch are the null block, which nothing is read from or written to.
        """
        common = common_attn_metadata
        count, each = common.num_reqs, common.max_query_len
        slots = self._slots(common)
        accepted = None if self.accepted is None else self.accepted[:count]
        return DeferredMetadata(lambda: build_uniform_metadata(count, each, slots(), accepted))

    def _requests(
        self, common: CommonAttentionMetadata, drafts: torch.Tensor | None
    ) -> StepRequests:
        count = common.num_reqs
        lengths = common.query_start_loc_cpu[: count + 1].diff().tolist()
        # Drafts that are rejected make a context shorter than this, but never empty.
        upper = common.seq_lens_cpu_upper_bound
        if upper is None:
            upper = common.seq_lens.cpu()
        known = [int(seen) - own for seen, own in zip(upper[:count], lengths, strict=True)]
        none = [-1] * count
        return StepRequests(lengths, known, none if drafts is None else drafts[:count].tolist())

    def _clear(self, fresh: list[int], slots: Callable[[], torch.Tensor]) -> None:
        """Make the states of requests zeros that begin and may go through the recurrence.

        Before the step, so that a captured one needs to know nothing of it.
        """
        if not fresh:
            return
        table = slots()
        (rows,) = to_device(table.device, torch.tensor(fresh))
        first = table[rows, 0].contiguous()
        for name in self.layer_names:
            for states in self._layers[name].kv_cache:
                clear_states(states, first)

    def _take_accepted(self, count: int, given: torch.Tensor | None) -> None:
        """Copy what the last step accepted; vLLM names its buffer in steps with drafts alone.

        In a step without any, requests still start from the state behind their last accepted draft,
        so the buffer is remembered.
        """
        if self.accepted is None:
            return
        if given is not None:
            size = given.untyped_storage().nbytes() // given.element_size()
            self._runners = given.as_strided((size,), (1,), 0)
        if self._runners is not None:
            kept = min(count, self.accepted.shape[0])
            self.accepted[:kept] = self._runners[:kept].clamp(min=1)

    def _slots(self, common: CommonAttentionMetadata) -> Callable[[], torch.Tensor]:
        """Makes ``[R, 1 + drafts]`` int32: the blocks that hold the requests' states."""
        table = common.block_table_tensor[: common.num_reqs]
        if not self.aligned:
            return lambda: table[:, : 1 + self.drafts].int()
        lens, block = common.seq_lens[: common.num_reqs], self.kv_cache_spec.block_size
        wanted = 1 + self.drafts

        def at_the_end() -> torch.Tensor:
            # The states of a step stand behind the last block that its tokens reach.
            first = ((lens.long() - 1) // block).clamp(min=0)
            columns = first.unsqueeze(1) + torch.arange(wanted, device=table.device)
            return table.gather(1, columns).int()

        return at_the_end


class AscendGDNAttentionBackend(GDNAttentionBackend):
    """Backend of states of the gated delta rule, with a gate for each head or for each channel."""

    @staticmethod
    def get_name() -> str:
        return "ASCEND_GDN"

    @staticmethod
    def get_builder_cls() -> type[AscendGDNAttentionMetadataBuilder]:
        return AscendGDNAttentionMetadataBuilder

    @staticmethod
    def get_impl_cls() -> type[Any]:
        raise RuntimeError("recurrent states are read by their layer, not by an attention impl")
