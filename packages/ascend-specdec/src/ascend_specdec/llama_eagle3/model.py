"""vLLM's Eagle3 draft for Llama layers, which also follows rotated targets."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import torch
from ascend_ops_core.errors import InvalidInputError
from vllm.config import VllmConfig
from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM

from ascend_specdec import quarot
from ascend_specdec.vllm.draft_windows import own_window
from ascend_specdec.vllm.target_files import files_of_target

logger = logging.getLogger(__name__)


class AscendEagle3LlamaForCausalLM(Eagle3LlamaForCausalLM):
    """The draft; see :mod:`ascend_specdec.quarot` for rotated targets.

    Args:
        vllm_config: the engine's config.
        prefix: of the module's name.

    Raises:
        InvalidInputError: the target is rotated and this draft cannot be adapted to it.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        speculative = vllm_config.speculative_config
        assert speculative is not None
        window = getattr(speculative.draft_model_config.hf_config, "sliding_window", None)
        with own_window(vllm_config, window):
            super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.set_target(vllm_config)

    def set_target(self, vllm_config: VllmConfig) -> None:
        """Find out whether the target is rotated.

        Raises:
            InvalidInputError: it is, and this draft cannot be adapted to it; or it is a name on
                the hub whose files cannot be read.
        """
        self.target_files = files_of_target(vllm_config)
        self.rotation = quarot.rotation_of(
            self.target_files, vllm_config.model_config.get_hidden_size()
        )
        if self.rotation is None:
            return
        for what, there in (
            ("norm_before_fc", self.model.norm_before_fc),
            ("fc_norm", self.model.fc_norm is not None),
            ("use_aux_hidden_state=False", not self.model.use_aux_hidden_state),
        ):
            if there:
                raise InvalidInputError(
                    f"a draft with {what} for a rotated target",
                    "gains of single channels and streams without a matrix cannot be rotated back",
                    "Use a target without QuaRot, or a draft without it.",
                )
        logger.info("the target is rotated (QuaRot), and the draft's first matrix with it")

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load the draft's checkpoint.

        Raises:
            InvalidInputError: the target is rotated, and the checkpoint lacks what cannot be
                taken from it.
        """
        if self.rotation is not None:
            weights = self._for_rotated_target(weights, self.rotation)
        super().load_weights(weights)

    def _for_rotated_target(
        self, weights: Iterable[tuple[str, torch.Tensor]], rotation: torch.Tensor
    ) -> Iterator[tuple[str, torch.Tensor]]:
        names = set()
        for name, tensor in weights:
            names.add(name)
            yield name, quarot.rotate_inputs(tensor, rotation) if name == "fc.weight" else tensor
        if "lm_head.weight" not in names:
            raise InvalidInputError(
                "a draft without lm_head for a rotated target",
                "the target's own would read rotated streams",
                "Use a draft that has an lm_head of its own.",
            )
        if "embed_tokens.weight" not in names:
            own = quarot.load_quarot_target_layer(self.target_files, quarot.EMBEDDINGS, rotation)
            yield "embed_tokens.weight", own
