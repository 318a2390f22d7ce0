"""Tensors of drafts with a checkpoint of their own, counted from their configs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from ascend_ops_core.errors import InvalidInputError

from ascend_vllm_plugin.planning.weights import VOCABULARY_PADDING

__all__ = [
    "BLOCKS",
    "DSPARK",
    "EAGLE3",
    "Headers",
    "heads_of",
    "layer_bytes",
    "stored_values",
    "streams_of",
    "vocabulary_rows",
]

Headers = Mapping[str, tuple[tuple[int, ...], torch.dtype]]

_VWN = ("LlamaForCausalLMVwnEagle3",)
EAGLE3 = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", *_VWN)
DSPARK = ("Qwen3DSparkModel",)
_DFLASH2 = ("DFlash2DraftModel", "DFlash2Qwen3ForCausalLM")
BLOCKS = ("DFlashDraftModel", *_DFLASH2)

_FLOAT32 = 4
_INDEX = 8


def layer_bytes(
    config: Mapping[str, Any],
    stored: Headers | None,
    *,
    streams: int,
    ranks: int,
    itemsize: int,
) -> int:
    """Bytes of a draft with layers of its own on one rank.

    Args:
        config: the draft's.
        stored: headers of its files, or None where there are none: then it has an embedding, a
            head and whatever else its config allows.
        streams: hidden states of the target that it reads.
        ranks: tensor-parallel ranks.
        itemsize: bytes of a value.
    """
    architecture, hidden = config["architectures"][0], config["hidden_size"]
    vocabulary = config["vocab_size"]
    drafted = config.get("draft_vocab_size") or vocabulary
    values = sum(_sizes_of(architecture)(config, architecture, streams, ranks))
    for name, rows in (("embed_tokens.weight", vocabulary), ("lm_head.weight", drafted)):
        if stored is None or name in stored:
            values += vocabulary_rows(rows, ranks) * hidden
    weights = values * itemsize
    if architecture in EAGLE3:
        # The target's token of each of the draft's, also where these are all.
        weights += drafted * _INDEX
    if architecture in DSPARK and config.get("enable_confidence_head", True):
        weights += _confidence(config, stored)
    return weights


def stored_values(config: Mapping[str, Any], stored: Headers, streams: int) -> int:
    """Values that the files of a draft with layers of its own must have.

    Maps of tokens are left out.

    Args:
        config: the draft's.
        stored: headers of its files, which say what it brings of what it may bring.
        streams: hidden states of the target that it reads.
    """
    architecture, hidden = config["architectures"][0], config["hidden_size"]
    values = sum(_sizes_of(architecture)(config, architecture, streams, 1))
    drafted = config.get("draft_vocab_size") or config["vocab_size"]
    for name, rows in (("embed_tokens.weight", config["vocab_size"]), ("lm_head.weight", drafted)):
        values += rows * hidden if name in stored else 0
    if architecture in DSPARK and config.get("enable_confidence_head", True):
        values += _confidence(config, stored) // _FLOAT32
    return values


def streams_of(config: Mapping[str, Any]) -> int:
    """Hidden states of the target that a draft reads.

    Raises:
        InvalidInputError: its config does not say.
    """
    architecture = config["architectures"][0]
    if architecture in _VWN:
        return 3
    if architecture in EAGLE3:
        inner = config.get("eagle_config") or {}
        given = config.get("num_aux_hidden_states")
        return given or len(inner.get("eagle_aux_hidden_state_layer_ids") or (0, 0, 0))
    inner = config.get("dflash_config") or {}
    layers = inner.get("target_layer_ids") or config.get("target_layer_ids")
    layers = layers or config.get("eagle_aux_hidden_state_layer_ids")
    if not layers:
        raise InvalidInputError(
            f"a draft {architecture} without target_layer_ids",
            "they say which hidden states it reads",
            "Take the draft from where it was trained.",
        )
    return len(layers)


def heads_of(config: Mapping[str, Any]) -> tuple[tuple[int, int], int]:
    """Query and key-value heads, and their width."""
    heads = config["num_attention_heads"]
    keys = config.get("num_key_value_heads") or heads
    return (heads, keys), config.get("head_dim") or config["hidden_size"] // heads


def _sizes_of(architecture: str) -> Callable[[Mapping[str, Any], str, int, int], Iterator[int]]:
    """What counts the values of a draft beside embedding and head."""
    if architecture in _VWN:
        return _wider_residual
    return _eagle3 if architecture in EAGLE3 else _block_draft


def _layer(config: Mapping[str, Any], read: int, ranks: int) -> Iterator[int]:
    """Values of a layer's projections on one rank, of which those of attention read ``read``."""
    (heads, keys), width = heads_of(config)
    hidden, inner = config["hidden_size"], config["intermediate_size"] // ranks
    queries, own = heads // ranks * width, max(1, keys // ranks) * width
    yield (queries + 2 * own) * read + hidden * queries
    if config.get("attention_bias"):
        yield queries + 2 * own
    yield 3 * hidden * inner


def _eagle3(
    config: Mapping[str, Any], architecture: str, streams: int, ranks: int
) -> Iterator[int]:
    hidden = config["hidden_size"]
    read = config.get("target_hidden_size") or hidden
    # The first layer reads the token's embedding beside the streams.
    for layer in range(config["num_hidden_layers"]):
        yield from _layer(config, hidden if layer else 2 * hidden, ranks)
        yield 3 * hidden
    yield hidden * streams * read + hidden
    # Norms in front of the first product.
    inner = config.get("eagle_config") or {}
    before = inner.get("norm_before_fc", config.get("norm_before_fc", False))
    yield (bool(before) + bool(config.get("fc_norm"))) * streams * read


def _wider_residual(
    config: Mapping[str, Any], architecture: str, streams: int, ranks: int
) -> Iterator[int]:
    """See ``ascend_specdec.layers.wider_residual``, whose own matrices all ranks have whole."""
    hidden, chunks = config["hidden_size"], config.get("vwn_m", 1)
    wider = int(hidden * config.get("vwn_r", 1))
    if config["num_hidden_layers"] != 1 or chunks < 1 or hidden % chunks or wider % chunks:
        raise InvalidInputError(
            f"a draft {architecture} of num_hidden_layers={config['num_hidden_layers']} with "
            f"vwn_m={chunks}",
            f"it has one layer, and vwn_m divides the widths {hidden} and {wider}",
            "Correct the draft's config.json.",
        )
    yield from _layer(config, hidden, ranks)
    yield hidden * streams * (config.get("target_hidden_size") or hidden)
    # Four norms of the layer and one behind it, and the product of embedding and stream.
    yield 5 * hidden + 2 * hidden * hidden
    # One matrix for all chunks: three into the residual, two out of it with a rest, one out of it.
    up, down = hidden * wider, (hidden + wider) * wider
    yield (3 * up + 2 * down + wider * hidden) // chunks**2


def _block_draft(
    config: Mapping[str, Any], architecture: str, streams: int, ranks: int
) -> Iterator[int]:
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    read = config.get("target_hidden_size") or hidden
    given = {**config, **(config.get("dflash_config") or {})}
    _, width = heads_of(config)
    for _ in range(config["num_hidden_layers"]):
        yield from _layer(config, hidden, ranks)
        yield 2 * hidden + 2 * width
        if architecture in _DFLASH2:
            taps, groups = given["conv_kernel_size"], hidden // given["conv_group_size"]
            # Around attention and around the network, before and behind each.
            yield 2 * (2 * taps * hidden + 2 * taps * groups * hidden)
    yield hidden * streams * read + 2 * hidden
    if architecture in _DFLASH2:
        yield given["selector_rank"] * (2 * vocabulary + hidden)
    if architecture in DSPARK:
        drafted = config.get("draft_vocab_size") or vocabulary
        yield given["markov_rank"] * (vocabulary + drafted)


def _confidence(config: Mapping[str, Any], stored: Headers | None) -> int:
    """Bytes of a confidence head, which is float32; at most, where no file says more."""
    name = "confidence_head.proj"
    if stored is not None and f"{name}.weight" not in stored:
        return 0
    width = config["hidden_size"] + config["markov_rank"]
    if stored is not None:
        width = stored[f"{name}.weight"][0][-1]
    bias = stored is None or f"{name}.bias" in stored
    return (width + bias) * _FLOAT32


def vocabulary_rows(vocabulary: int, ranks: int) -> int:
    """Rows of an embedding or a head on one rank."""
    padded = -(-vocabulary // VOCABULARY_PADDING) * VOCABULARY_PADDING
    return -(-padded // ranks)
