"""The proposer of block drafts (DFlash, DFlash2, DSpark) on vLLM's V1 runner.

vLLM 0.27.1 has DFlash on V1 for one group of caches, on CUDA and with C++ kernels for a CPU, and
DSpark on its runner V2 alone, which needs Triton on CUDA. This one serves both, on a CPU and on an
NPU: it stands where the runner looks for ``DFlashProposer``, see :mod:`block_hooks`.

A draft model is whatever has the methods of ``ascend_ops_core.layers.block_drafts.BlockDraft``.

A step's rows are those of the target: context of all accepted tokens is written first, so that what
an earlier step wrote for rejected ones is overwritten before it is read. Then comes one block of
``Q`` rows for each request, see :mod:`ascend_specdec.ops.block_inputs`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from ascend_ops_core.errors import InvalidInputError
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.kv_cache_interface import KVCacheConfig, UniformTypeKVCacheSpecs
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
from vllm.v1.worker.utils import AttentionGroup

from ascend_specdec.ops.block_inputs import expand_blocks
from ascend_specdec.vllm.draft_choice import DraftChoice

__all__ = ["BlockDraftProposer"]


class BlockDraftProposer(SpecDecodeBaseProposer):
    """See the module.

    Args:
        vllm_config: the engine's config; its draft is a block drafter.
        device: of the runner.
        runner: vLLM's V1 runner, whose block tables are read.
    """

    def __init__(self, vllm_config: VllmConfig, device: torch.device, runner: Any) -> None:
        super().__init__(vllm_config, device, pass_hidden_states_to_model=True, runner=runner)
        self.runner = runner
        self.kernel_block_sizes: list[int] = []

    def _init_parallel_drafting_params(self) -> None:
        """Nothing: the model says which token masks a place."""

    def _warn_if_multimodal(self) -> None:
        """Nothing: the draft reads the target's hidden states, whatever they came from."""

    def _create_draft_vllm_config(self) -> VllmConfig:
        base = super()._create_draft_vllm_config()
        return replace(base, attention_config=replace(base.attention_config, use_non_causal=True))

    def load_model(self, target_model: torch.nn.Module) -> None:
        """Load the draft, and let the longest context be the target's."""
        super().load_model(target_model)
        self.queries = self.model.spec.queries(self.num_speculative_tokens)
        if self.speculative_config.max_model_len is None:
            # A block that passes the longest context is cut row by row. vLLM would stop drafting
            # for the whole batch, and the others' caches would miss this step's context.
            self.runner.effective_drafter_max_model_len = self.max_model_len + self.queries + 1

    def validate_same_kv_cache_group(self, kv_cache_config: KVCacheConfig) -> None:
        """Nothing: every layer takes its own group."""

    def initialize_attn_backend(
        self, kv_cache_config: KVCacheConfig, kernel_block_sizes: list[int] | None = None
    ) -> None:
        """Sort the draft's layers by their group of caches, their backend and causality.

        Raises:
            InvalidInputError: a backend that cannot let a query see those behind it, or a layer
                that is in no group.
        """
        layers = get_layers_from_vllm_config(
            self.vllm_config,
            AttentionLayerBase,
        )
        causal = self.model.causal_layers()
        found: dict[tuple[int, str, bool], AttentionGroup] = {}
        for gid, group in enumerate(kv_cache_config.kv_cache_groups):
            for name in sorted(self._draft_attn_layer_names & set(group.layer_names)):
                backend = layers[name].get_attn_backend()
                if not causal[name] and not backend.supports_non_causal():
                    raise InvalidInputError(
                        f"attention backend {backend.get_name()} for a block draft",
                        "it lets no query see those behind it",
                        "Leave attention_backend out of speculative_config.",
                    )
                key = (gid, backend.full_cls_name(), causal[name])
                if key in found:
                    found[key].layer_names.append(name)
                    continue
                spec = group.kv_cache_spec
                if isinstance(spec, UniformTypeKVCacheSpecs):
                    spec = spec.kv_cache_specs[name]
                found[key] = AttentionGroup(backend, [name], spec, gid)
        sorted_in = {name for group in found.values() for name in group.layer_names}
        if left_out := sorted(self._draft_attn_layer_names - sorted_in):
            raise InvalidInputError(
                f"layers of the draft in no group of caches: {', '.join(left_out)}",
                "each of them reads the block table of its own group",
                "Serve with vLLM 0.27.1.",
            )
        sizes = kernel_block_sizes or []
        self.groups = list(found.items())
        self.draft_attn_groups = [group for _, group in self.groups]
        self.block_sizes: dict[int, int] = {}
        for (gid, _, _), group in self.groups:
            # Tables count the blocks of the attention kernel, of which a manager's block may hold
            # several.
            size = sizes[gid] if gid < len(sizes) else group.kv_cache_spec.block_size
            group.create_metadata_builders(self.vllm_config, self.device, kernel_block_size=size)
            self.block_sizes[gid] = size
        self.kv_cache_gid = self.groups[0][0][0]
        self.block_size = self.block_sizes[self.kv_cache_gid]

    @torch.inference_mode()
    def dummy_run(
        self,
        num_tokens: int,
        use_cudagraphs: bool = True,
        is_graph_capturing: bool = False,
        slot_mappings: dict[str, torch.Tensor] | None = None,
    ) -> None:
        """One pass without caches, of as many rows as a step of so many tokens can have."""
        requests = min(-(-num_tokens // self.queries), self.max_batch_size)
        rows = requests * self.queries
        width = self.model.spec.target_hidden_size * len(self.model.spec.target_layers)
        states = torch.zeros(num_tokens, width, dtype=self.dtype, device=self.device)
        self.model.combine_hidden_states(states)
        zeros = torch.zeros(rows, dtype=torch.int64, device=self.device)
        with set_forward_context(None, self.vllm_config, num_tokens=rows):
            hidden = self.model(zeros.int(), zeros, self.queries)
        blocks = hidden.view(requests, self.queries, -1)
        self.model.draft(blocks, zeros[:requests], DraftChoice(None))

    def propose(
        self,
        num_speculative_tokens: int,
        target_token_ids: torch.Tensor,
        target_positions: torch.Tensor,
        target_hidden_states: torch.Tensor,
        next_token_ids: torch.Tensor,
        token_indices_to_sample: torch.Tensor | None,
        common_attn_metadata: CommonAttentionMetadata,
        sampling_metadata: SamplingMetadata,
        mm_embed_inputs: tuple[list[torch.Tensor], torch.Tensor] | None = None,
        num_rejected_tokens_gpu: torch.Tensor | None = None,
        slot_mappings: Any = None,
    ) -> torch.Tensor:
        """Draft a block for every request.

        Args:
            num_speculative_tokens: drafts that are wanted, at most those of the config; fewer are
                the first of a whole block.
            target_token_ids: ``[T]``, not read.
            target_positions: ``[T]``.
            target_hidden_states: ``[T, m * H]``.
            next_token_ids: ``[R]``, the token that the target chose last.
            token_indices_to_sample: not read.
            common_attn_metadata: of the step, for the first group of the draft's caches.
            sampling_metadata: of the requests.
            mm_embed_inputs: not read.
            num_rejected_tokens_gpu: ``[R]``; None where the rejected ones are not among the ``T``.
            slot_mappings: not read.

        Returns:
            ``[R, num_speculative_tokens]``.
        """
        self._last_draft_probs = None
        common, requests = common_attn_metadata, common_attn_metadata.num_reqs
        states = self.model.combine_hidden_states(target_hidden_states)
        metadata, slots, context = {}, {}, {}
        for index, ((gid, _, causal), group) in enumerate(self.groups):
            table = self._block_table(common, gid, requests)
            rows = self._rows(common, next_token_ids, num_rejected_tokens_gpu, table, gid)
            tokens, positions, block_slots, context_slots = rows
            blocks = self._block_metadata(common, num_rejected_tokens_gpu, table, block_slots)
            blocks.causal = causal
            built = group.get_metadata_builder().build_for_drafting(
                common_attn_metadata=blocks, draft_index=index
            )
            for name in group.layer_names:
                metadata[name], slots[name], context[name] = built, block_slots, context_slots
        self.model.insert_context(states, target_positions[: states.shape[0]], context)
        with set_forward_context(
            metadata, self.vllm_config, num_tokens=tokens.shape[0], slot_mapping=slots
        ):
            hidden = self.model(tokens, positions, self.queries)
        if not num_speculative_tokens:
            return next_token_ids.new_empty(requests, 0, dtype=torch.int64)
        choice = self._choice(sampling_metadata)
        blocks = hidden.view(requests, self.queries, -1)
        read = self.model.spec.rows_read(num_speculative_tokens)
        drafts, laws = self.model.draft(blocks[:, :read], next_token_ids, choice)
        if laws is not None:
            self._last_draft_probs = laws.contiguous()
        return drafts

    def _choice(self, sampling: SamplingMetadata) -> DraftChoice:
        # A request inside its prompt throws its drafts away; its generator must not move on, or the
        # way a prompt is cut would decide what a seed gives.
        discarded = self.runner.discard_request_mask.np[: self.runner.input_batch.num_reqs]
        unused = frozenset(discarded.nonzero()[0].tolist())
        return DraftChoice(sampling, self._enable_probabilistic_draft_probs, unused)

    def _block_table(
        self, common: CommonAttentionMetadata, gid: int, requests: int
    ) -> torch.Tensor:
        if gid == self.kv_cache_gid:
            return common.block_table_tensor[:requests]
        table: torch.Tensor = self.runner.input_batch.block_table[gid].get_device_tensor(requests)
        return table

    def _rows(
        self,
        common: CommonAttentionMetadata,
        next_tokens: torch.Tensor,
        rejected: torch.Tensor | None,
        table: torch.Tensor,
        gid: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens, positions and slots of the blocks, and slots of the context."""
        requests = common.num_reqs
        rows = requests * self.queries
        tokens = torch.empty(rows, dtype=torch.int32, device=self.device)
        positions = torch.empty(rows, dtype=torch.int64, device=self.device)
        slots = torch.empty_like(positions)
        context = torch.empty(common.num_actual_tokens, dtype=torch.int64, device=self.device)
        expand_blocks(
            tokens,
            positions,
            slots,
            context,
            next_tokens,
            common.query_start_loc[: requests + 1],
            common.seq_lens[:requests],
            rejected,
            table,
            mask_token=self.model.spec.mask_token,
            block_size=self.block_sizes[gid],
            limit=self.max_model_len,
        )
        return tokens, positions, slots, context

    def _block_metadata(
        self,
        common: CommonAttentionMetadata,
        rejected: torch.Tensor | None,
        table: torch.Tensor,
        slots: torch.Tensor,
    ) -> CommonAttentionMetadata:
        """The step as the draft's layers see it: a block of every request behind its context."""
        requests, queries = common.num_reqs, self.queries
        seq_lens = common.seq_lens[:requests]
        if rejected is not None:
            seq_lens = seq_lens - rejected
        # Rows beyond the longest context stay at its last position and are not cached.
        seq_lens = (seq_lens + queries).clamp(max=self.max_model_len)
        upper = common.seq_lens_cpu_upper_bound
        if upper is not None:
            upper = (upper[:requests] + queries).clamp(max=self.max_model_len)
        starts = torch.arange(0, (requests + 1) * queries, queries, dtype=torch.int32)
        return CommonAttentionMetadata(
            query_start_loc=starts.to(self.device, non_blocking=True),
            query_start_loc_cpu=starts,
            seq_lens=seq_lens,
            _seq_lens_cpu=None,
            _num_computed_tokens_cpu=None,
            seq_lens_cpu_upper_bound=upper,
            num_reqs=requests,
            num_actual_tokens=requests * queries,
            max_query_len=queries,
            max_seq_len=min(common.max_seq_len + queries, self.max_model_len),
            block_table_tensor=table,
            slot_mapping=slots,
        )
