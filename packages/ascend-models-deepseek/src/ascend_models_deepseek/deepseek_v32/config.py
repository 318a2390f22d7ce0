"""DeepSeek-V3.2's configuration: DeepSeek-V3's, and the indexer's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ascend_ops_core.checkpoint.config_reader import FIX_CONFIG, ConfigReader
from ascend_ops_core.errors import InvalidInputError

from ascend_models_deepseek.deepseek_v3.config import DeepseekV3Spec

_TYPES = {"F": "full", "S": "shared"}


@dataclass(frozen=True)
class DeepseekV32Spec(DeepseekV3Spec):
    """Everything that the model's code reads from a config, validated.

    Attributes follow the published config's names. ``indexer_types`` says of every main layer
    whether it has an indexer ("full") or takes over the selection of the last one in front of it
    that has ("shared"). With
    ``index_share_for_mtp_iteration`` all steps of a draft attend to what the first has selected.
    """

    index_n_heads: int
    index_head_dim: int
    index_topk: int
    indexer_rope_interleave: bool
    indexer_types: tuple[str, ...]
    index_share_for_mtp_iteration: bool

    default_rope_interleave = False

    def has_indexer(self, layer: int) -> bool:
        """Whether the layer selects tokens itself; MTP layers, behind the main ones, always do."""
        return layer >= self.num_hidden_layers or self.indexer_types[layer] == "full"

    @classmethod
    def read(cls, read: ConfigReader) -> dict[str, Any]:
        values = super().read(read)
        return values | {
            "index_n_heads": read.integer("index_n_heads", least=1),
            "index_head_dim": read.integer("index_head_dim", least=1),
            "index_topk": read.integer("index_topk", least=1),
            "indexer_rope_interleave": bool(
                read.get("indexer_rope_interleave", cls.default_rope_interleave)
            ),
            "indexer_types": _indexer_types(read, values["num_hidden_layers"]),
            "index_share_for_mtp_iteration": bool(read.get("index_share_for_mtp_iteration", False)),
        }

    def check(self) -> None:
        super().check()
        if self.q_lora_rank is None:
            raise InvalidInputError(
                "config without 'q_lora_rank'",
                "the indexer makes its queries from the query latent",
                "Add it to config.json.",
            )
        if self.qk_rope_head_dim > self.index_head_dim:
            raise InvalidInputError(
                f"index_head_dim={self.index_head_dim}",
                f"qk_rope_head_dim={self.qk_rope_head_dim} of its channels are rotated",
                FIX_CONFIG,
            )


def _indexer_types(read: ConfigReader, layers: int) -> tuple[str, ...]:
    """One type for each layer: as listed, by pattern, or by the period of indexers."""
    given: Sequence[str] | None = read.get("indexer_types")
    if given is None and (pattern := read.get("index_topk_pattern")) is not None:
        given = [_TYPES.get(one, one) for one in pattern]
    if given is None:
        period = max(read.integer("index_topk_freq", 1), 1)
        offset = read.integer("index_skip_topk_offset", 2)
        given = [
            "shared" if max(layer - offset + 1, 0) % period else "full" for layer in range(layers)
        ]
    types = tuple(given)
    if len(types) < layers or set(types) - set(_TYPES.values()) or types[:1] == ("shared",):
        raise InvalidInputError(
            f"indexer_types={list(types)}",
            f"each of {layers} layers is 'full' or 'shared', the first 'full'",
            "Correct indexer_types (or index_topk_pattern) in config.json.",
        )
    return types[:layers]
