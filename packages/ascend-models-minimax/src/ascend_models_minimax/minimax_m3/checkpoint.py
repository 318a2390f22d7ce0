"""In which form the checkpoint of an engine has MiniMax-M3's weights."""

from __future__ import annotations

from collections.abc import Callable, Container

from ascend_fused_moe.quantized_rules import WeightForms
from ascend_fused_moe.vllm.checkpoint_forms import resolver_of_config
from ascend_ops_core.checkpoint.table import WeightTable, raise_for
from ascend_ops_core.quantized_weights import QuantizationResolver
from vllm.config import ModelConfig

from ascend_models_minimax.minimax_m3.config import MiniMaxM3Spec
from ascend_models_minimax.minimax_m3.quantization import LAYER_RULES, layers_apart
from ascend_models_minimax.minimax_m3.weights import text_root


class Checkpoint:
    """What an engine's checkpoint says of itself.

    Args:
        spec: the model's config.
        model: vLLM's config of the model; of a draft's target.

    Attributes:
        root: in front of all names of the text model's tensors.
        source: the checkpoint's directory or name.
        apart: layers whose index projections are a product of their own.

    Raises:
        InvalidInputError: a quantisation that is not known.
    """

    def __init__(self, spec: MiniMaxM3Spec, model: ModelConfig) -> None:
        self.root = text_root(model.hf_config)
        self.source = model.model
        self._resolver: QuantizationResolver = resolver_of_config(
            model.hf_config, model.model, LAYER_RULES
        )
        self.apart = layers_apart(spec, self._resolver, self.root)

    def forms(self, table: Callable[[str, Container[int]], WeightTable]) -> WeightForms:
        """What the checkpoint stores for a table of tensors.

        Args:
            table: makes it of :attr:`root` and :attr:`apart`.

        Raises:
            CheckpointError: the checkpoint's description does not fit the model; lists every
                problem.
        """
        forms = WeightForms(table(self.root, self.apart), self._resolver)
        raise_for(forms.problems)
        return forms
