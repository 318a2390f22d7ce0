"""DeepSeek-V3 on vLLM: the decoder stack and the class that vLLM loads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from ascend_attention.vllm.mla.latent_layer import fuse_prologues
from ascend_fused_moe.quantized_rules import finish_weights
from ascend_ops_core.checkpoint.headers import check_headers
from ascend_ops_core.cpu_kernels import follow_torch_threads
from ascend_ops_core.vllm.vocabulary import lm_head, vocab_embedding
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.sequence import IntermediateTensors

from ascend_models_deepseek.deepseek_v3.architecture import DEEPSEEK_V3, Architecture
from ascend_models_deepseek.deepseek_v3.build import Build
from ascend_models_deepseek.deepseek_v3.config import DeepseekV3Spec
from ascend_models_deepseek.deepseek_v3.decoder_layer import DeepseekV3DecoderLayer, Stream
from ascend_models_deepseek.deepseek_v3.weights import main_table
from ascend_models_deepseek.deepseek_v4.build import parameter
from ascend_models_deepseek.deepseek_v4.validation import check_engine_config


class DeepseekV3Model(nn.Module):
    """Embedding, layers, and the final norm.

    Args:
        architecture: the model of the family.
        spec: its config.
        vllm_config: the engine's config.
        prefix: prefix of the layers' names.
    """

    def __init__(
        self,
        architecture: Architecture,
        spec: DeepseekV3Spec,
        vllm_config: VllmConfig,
        prefix: str,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.embed_tokens = vocab_embedding(spec, vllm_config.model_config.dtype)
        build = Build.of(architecture, spec, vllm_config, self.embed_tokens, main_table)
        self.forms = build.forms
        self.rotary = build.rotary
        self.layers = nn.ModuleList(
            DeepseekV3DecoderLayer(build, i, f"{prefix}.layers.{i}")
            for i in range(spec.num_hidden_layers)
        )
        self.norm = parameter(spec.hidden_size)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Normed hidden states ``[T, H]``."""
        follow_torch_threads()
        cos, sin = self.rotary.gather(positions)
        stream = Stream(None, self.embed_tokens(input_ids))
        for layer in self.layers:
            stream = layer(stream, cos, sin)
        return stream.normed(self.norm, self.spec.rms_norm_eps)[0]


class AscendDeepseekV3ForCausalLM(nn.Module):
    """DeepSeek-V3 as vLLM's ``DeepseekV3ForCausalLM``.

    Raises:
        InvalidInputError: a config or an engine setting that the model cannot serve, before any
            weight is allocated.
        CheckpointError: from :meth:`load_weights`, listing every problem.
    """

    architecture: ClassVar[Architecture] = DEEPSEEK_V3
    """What other models of the family replace."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        spec = self.architecture.spec.from_config(config)
        check_engine_config(spec, vllm_config)
        self.config = config
        self._source = vllm_config.model_config.model
        self.model = DeepseekV3Model(self.architecture, spec, vllm_config, "model")
        self.lm_head = lm_head(spec, vllm_config.model_config.dtype)
        self.logits_processor = LogitsProcessor(spec.vocab_size)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """``[T, H]`` embeddings."""
        return self.model.embed_tokens(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Normed hidden states ``[T, H]``, from which the MTP draft continues as well."""
        hidden: torch.Tensor = self.model(input_ids, positions)
        return hidden

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Logits ``[T, V]``."""
        return self.logits_processor(self.lm_head, hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Fill all parameters from tensors in the published naming."""
        table = self.model.forms.table
        check_headers(table, self._source)
        loaded = table.load(self, weights)
        finish_weights(self)
        fuse_prologues(self)
        return loaded
