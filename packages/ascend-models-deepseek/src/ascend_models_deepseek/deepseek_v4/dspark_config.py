"""What DSpark's keys in a DeepSeek-V4 config say, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.layers.block_drafts import TRAINED_BLOCK, BlockShape

from ascend_models_deepseek.deepseek_v4.config import FIX_CONFIG, ConfigValues, DeepseekV4Spec

__all__ = ["DSparkSpec"]

_LAYERS = 3


@dataclass(frozen=True)
class DSparkSpec(BlockShape):
    """DeepSeek-V4's block draft.

    Attributes:
        main: the model's config, whose MTP layers are the draft's.
        markov_rank: ``r`` of the Markov head.
        trained_block: drafts of a block in training, the fewest that are computed, since the rows
            of a block see each other; None if not known.
    """

    main: DeepseekV4Spec
    markov_rank: int
    trained_block: int | None

    @property
    def least_drafts(self) -> int:
        """Those of training: a shorter block has other first tokens."""
        return self.trained_block or 1

    @property
    def layers(self) -> range:
        """Numbers of its layers, which follow the target's."""
        first = self.main.num_hidden_layers
        return range(first, first + self.main.num_mtp_layers)

    @classmethod
    def from_config(cls, config: Any) -> DSparkSpec:
        """Read a Hugging Face config object or a mapping.

        ``n_mtp_layers`` or ``dspark_num_mtp_layers`` counts the draft's layers, 3 without either.

        Raises:
            InvalidInputError: a missing key, or one that makes no sense; the message names it.
        """
        read = ConfigValues(config)
        layers = read.integer("n_mtp_layers", read.get("dspark_num_mtp_layers", _LAYERS))
        main = DeepseekV4Spec.from_config(config, mtp_layers=layers)
        targets = read.get("dspark_target_layer_ids")
        if not targets:
            raise InvalidInputError(
                "config without 'dspark_target_layer_ids'",
                "DSpark reads hidden states of these layers",
                "Add it to config.json, or take a checkpoint that has a DSpark draft.",
            )
        numbers = all(isinstance(one, int) for one in targets)
        if not numbers or list(targets) != sorted(set(targets)):
            raise InvalidInputError(
                f"dspark_target_layer_ids={list(targets)}",
                "it holds numbers of layers in rising order, in which their hidden states are read",
                FIX_CONFIG,
            )
        keys = ("dspark_block_size", TRAINED_BLOCK)
        block = next((read.integer(key) for key in keys if read.get(key) is not None), None)
        spec = cls(
            hidden_size=main.hidden_size,
            vocab_size=main.vocab_size,
            draft_vocab_size=read.integer("draft_vocab_size", main.vocab_size),
            target_layers=tuple(targets),
            target_hidden_size=main.hidden_size,
            mask_token=read.integer("dspark_noise_token_id"),
            from_anchor=bool(read.get("sample_from_anchor", True)),
            main=main,
            markov_rank=read.integer("dspark_markov_rank"),
            trained_block=block,
        )
        spec._check()
        return spec

    def _check(self) -> None:
        for name, value in (
            ("n_mtp_layers", self.main.num_mtp_layers),
            ("dspark_markov_rank", self.markov_rank),
            ("dspark_block_size", 1 if self.trained_block is None else self.trained_block),
        ):
            if value < 1:
                raise InvalidInputError(f"{name}={value}", "it must be at least 1", FIX_CONFIG)
        if self.mask_token >= self.vocab_size:
            raise InvalidInputError(
                f"dspark_noise_token_id={self.mask_token}",
                f"the vocabulary has the ids 0 to {self.vocab_size - 1}",
                FIX_CONFIG,
            )
        if self.draft_vocab_size != self.vocab_size:
            raise InvalidInputError(
                f"draft_vocab_size={self.draft_vocab_size}",
                f"this draft's tokens are the target's {self.vocab_size}",
                "Remove it from config.json.",
            )
