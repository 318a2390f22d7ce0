"""MiniMax-M3's text model on vLLM: the decoder stack and the class that vLLM loads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from ascend_fused_moe.quantized_rules import finish_weights
from ascend_ops_core.checkpoint.headers import check_headers
from ascend_ops_core.cpu_kernels import follow_torch_threads
from ascend_ops_core.huge_pages import move_to_huge_pages
from ascend_ops_core.vllm.vocabulary import lm_head, vocab_embedding
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.models.interfaces import EagleModelMixin, SupportsEagle3
from vllm.sequence import IntermediateTensors

from ascend_models_minimax.minimax_m3.build import Build, parameter
from ascend_models_minimax.minimax_m3.checkpoint import Checkpoint
from ascend_models_minimax.minimax_m3.config import MiniMaxM3Spec
from ascend_models_minimax.minimax_m3.decoder_layer import MiniMaxM3DecoderLayer, Stream
from ascend_models_minimax.minimax_m3.validation import check_engine_config
from ascend_models_minimax.minimax_m3.weights import main_table

Hidden = torch.Tensor | tuple[torch.Tensor, list[torch.Tensor]]


class MiniMaxM3Model(nn.Module, EagleModelMixin):
    """Embedding, layers, and the final norm.

    Args:
        spec: its config.
        vllm_config: the engine's config.
        checkpoint: the engine's.
        prefix: prefix of the layers' names.

    Raises:
        CheckpointError: the checkpoint's description does not fit the model.
    """

    aux_hidden_state_layers: tuple[int, ...] = ()
    """Layers in front of which an EAGLE-3 draft reads the stream."""

    def __init__(
        self, spec: MiniMaxM3Spec, vllm_config: VllmConfig, checkpoint: Checkpoint, prefix: str
    ) -> None:
        super().__init__()
        self.spec = spec
        self.embed_tokens = vocab_embedding(spec, vllm_config.model_config.dtype)
        build = Build.of(
            spec,
            vllm_config,
            self.embed_tokens,
            checkpoint,
            lambda spec, shard, root, apart: main_table(spec, shard, root, apart=apart),
        )
        self.shard = build.shard
        self.forms = build.forms
        self.rotary = build.rotary
        self.layers = nn.ModuleList(
            MiniMaxM3DecoderLayer(build, i, f"{prefix}.layers.{i}")
            for i in range(spec.num_hidden_layers)
        )
        self.norm = parameter(spec.hidden_size)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        inputs_embeds: torch.Tensor | None = None,
    ) -> Hidden:
        """Normed hidden states.

        Args:
            input_ids: ``[T]``; read where there are no embeddings.
            positions: ``[T]``.
            inputs_embeds: ``[T, H]``, or None.

        Returns:
            ``[T, H]``; with auxiliary layers also the residual streams ``[T, H]`` in front of
            them, all of them whole on every rank.
        """
        follow_torch_threads()
        cos, sin = self.rotary.gather(positions)
        if inputs_embeds is None:
            assert input_ids is not None
            inputs_embeds = self.embed_tokens(input_ids)
        stream = Stream(None, inputs_embeds)
        auxiliary: list[torch.Tensor] = []
        for number, layer in enumerate(self.layers):
            if number in self.aux_hidden_state_layers:
                auxiliary.append(stream.sum())
            stream = layer(stream, cos, sin)
        if len(self.layers) in self.aux_hidden_state_layers:
            auxiliary.append(stream.sum())
        hidden = stream.normed(self.norm, self.spec.rms_norm_eps)[0]
        return (hidden, auxiliary) if auxiliary else hidden


class AscendMiniMaxM3SparseForCausalLM(nn.Module, SupportsEagle3):
    """MiniMax-M3's text model as vLLM's ``MiniMaxM3SparseForCausalLM``.

    A checkpoint that also has images can be served by it, without them.

    Raises:
        InvalidInputError: a config or an engine setting that the model cannot serve, before any
            weight is allocated.
        CheckpointError: from :meth:`load_weights`, listing every problem.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        spec = MiniMaxM3Spec.from_config(vllm_config.model_config.hf_config)
        check_engine_config(spec, vllm_config)
        self.config = vllm_config.model_config.hf_text_config
        self.checkpoint = Checkpoint(spec, vllm_config.model_config)
        self.model = MiniMaxM3Model(spec, vllm_config, self.checkpoint, "model")
        self.lm_head = lm_head(spec, vllm_config.model_config.dtype)
        self.logits_processor = LogitsProcessor(spec.vocab_size)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """``[T, H]`` embeddings."""
        return self.model.embed_tokens(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Hidden:
        """See :meth:`MiniMaxM3Model.forward`; an MTP draft continues from the hidden states."""
        hidden: Hidden = self.model(input_ids, positions, inputs_embeds)
        return hidden

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Logits ``[T, V]``."""
        return self.logits_processor(self.lm_head, hidden_states)

    def get_expert_mapping(self) -> list[tuple[str, str, int, str]]:
        """Parameter, checkpoint name, expert and shard of every routed tensor, as vLLM asks."""
        return expert_mapping(self.model.spec)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Fill all parameters from tensors in the published naming."""
        table = self.model.forms.table
        check_headers(table, self.checkpoint.source)
        loaded = table.load(self, weights)
        finish_weights(self)
        move_to_huge_pages(self.parameters())
        return loaded


def expert_mapping(spec: MiniMaxM3Spec) -> list[tuple[str, str, int, str]]:
    """See :meth:`AscendMiniMaxM3SparseForCausalLM.get_expert_mapping`."""
    places = {"w1": "experts.w13", "w2": "experts.w2", "w3": "experts.w13"}
    return [
        (place, f"experts.{expert}.{tensor}.weight", expert, tensor)
        for expert in range(spec.num_local_experts)
        for tensor, place in places.items()
    ]
