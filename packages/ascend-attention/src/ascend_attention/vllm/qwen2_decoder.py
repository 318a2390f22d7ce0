"""vLLM's Qwen2 decoder as an encoder, of DeepSeek-OCR-2, by this package's operators."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.errors import InvalidInputError
from torch import nn
from vllm.model_executor.models.deepencoder2 import CustomQwen2Decoder

from ascend_attention.layers.qwen2_decoder import AscendQwen2Model, Qwen2DecoderShape


class AscendCustomQwen2Decoder(CustomQwen2Decoder):
    """The encoder behind the patches of a picture; arguments as vLLM's.

    Weights keep transformers' names, so that checkpoints load as into vLLM's. Neither dropout nor
    another activation than SiLU is built, since no checkpoint asks for it.
    """

    def __init__(
        self,
        decoder_layer: int = 24,
        max_position_embeddings: int = 131072,
        hidden_dimension: int = 896,
        num_attention_heads: int = 14,
        num_key_value_heads: int = 2,
        intermediate_size: int = 4864,
        vocab_size: int = 151936,
        attn_implementation: str = "sdpa",
        rms_norm_eps: float = 1e-06,
        rope_theta: float = 1000000.0,
        attention_dropout: float = 0.0,
        hidden_act: str = "silu",
        initializer_range: float = 0.02,
    ) -> None:
        for name, value, only in (
            ("attention_dropout", attention_dropout, 0.0),
            ("hidden_act", hidden_act, "silu"),
        ):
            if value != only:
                raise InvalidInputError(
                    f"{name}={value!r}",
                    f"this encoder is built with {name}={only!r}",
                    "Check vision_config, or disable this plugin (VLLM_PLUGINS) for this model.",
                )
        # vLLM's builds transformers' model, which would hold the weights a second time.
        nn.Module.__init__(self)
        self.most_rows = max_position_embeddings
        self.model = AscendQwen2Model(
            Qwen2DecoderShape(
                decoder_layer,
                hidden_dimension,
                num_attention_heads,
                num_key_value_heads,
                intermediate_size,
                rms_norm_eps,
                rope_theta,
            )
        )

    def forward(
        self,
        inputs_embeds: torch.Tensor,
        token_type_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor]:
        """Encode pictures.

        Args:
            inputs_embeds: ``[B, 2 n, hidden_dimension]``.
            token_type_ids: ``[B, 2 n]``, ``n`` zeros and ``n`` ones; not read, as in vLLM's.
            attention_mask: None.
            kwargs: nothing.

        Returns:
            ``[B, 2 n, hidden_dimension]``, alone in a tuple.

        Raises:
            InvalidInputError: a mask or another argument of transformers' model, or more rows than
                positions.
        """
        given = [name for name, value in kwargs.items() if value is not None]
        if attention_mask is not None:
            given.append("attention_mask")
        if given:
            raise InvalidInputError(
                ", ".join(given), "this encoder takes embeddings alone", "Leave them out."
            )
        if inputs_embeds.shape[1] > self.most_rows:
            raise InvalidInputError(
                f"{inputs_embeds.shape[1]} rows",
                f"max_position_embeddings is {self.most_rows}",
                "Encode fewer rows at once.",
            )
        return (self.model(inputs_embeds),)
