"""What speculation takes on a card: weights, caches and buffers of a draft that is no part of the
target's checkpoint, and what methods without a draft model keep.

Tensors are counted from the draft's config, whose classes are vLLM's (``medusa``, ``eagle3``) and
:mod:`ascend_specdec`'s (``dflash``, ``dspark``); whether a draft has an embedding and a head of its
own only its checkpoint says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from ascend_attention.caches import CacheKind
from ascend_ops_core.checkpoint.headers import read_headers
from ascend_ops_core.errors import InvalidInputError

from ascend_vllm_plugin.planning.dense import key_value_cache
from ascend_vllm_plugin.planning.draft_tensors import (
    BLOCKS,
    DSPARK,
    EAGLE3,
    Headers,
    heads_of,
    layer_bytes,
    stored_values,
    streams_of,
    vocabulary_rows,
)
from ascend_vllm_plugin.planning.estimates import Estimate, Step

__all__ = [
    "METHODS",
    "DraftTarget",
    "PlannedDraft",
    "Speculation",
    "draft_buffers",
    "draft_problem",
    "draft_step",
    "plan_draft",
    "read_draft",
]

_FLOAT32, _INDEX = 4, 8

_ARCHITECTURES = {
    "eagle3": EAGLE3,
    "medusa": ("MedusaModel",),
    "dflash": BLOCKS,
    "dspark": DSPARK,
}
_OWN_CHECKPOINT = f"drafts with a checkpoint of their own have {', '.join(_ARCHITECTURES)}"
_NOTHING = Estimate(0, "nothing is drafted")
_MAPS = frozenset({"d2t", "t2d", "token_map"})
METHODS = ("mtp", "ngram", "ngram_gpu", "suffix", *_ARCHITECTURES)
"""Methods that are planned."""


@dataclass(frozen=True)
class Speculation:
    """The engine's ``speculative_config``, as far as memory depends on it.

    Attributes:
        method: one of :data:`METHODS`.
        tokens: drafted in a step.
        model: directory of the draft's checkpoint, or its config.json; None where there is none.
    """

    method: str
    tokens: int
    model: Path | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InvalidInputError(
                f"speculative method {self.method!r}",
                f"planned are {', '.join(METHODS)}",
                "Choose one of them.",
            )
        if self.tokens < 1:
            raise InvalidInputError(
                f"num_speculative_tokens={self.tokens}",
                "it must be at least 1",
                "Raise it, or plan without speculation.",
            )
        if self.model is not None and self.method not in _ARCHITECTURES:
            raise InvalidInputError(
                f"method {self.method!r} with a model", _OWN_CHECKPOINT, "Leave 'model' out."
            )
        if self.method in ("eagle3", "medusa", "dflash"):
            self.own_model()

    def own_model(self) -> Path:
        """The draft's directory, or its config.json.

        Raises:
            InvalidInputError: none is named.
        """
        if self.model is None:
            raise InvalidInputError(
                f"method {self.method!r} without a model",
                f"{_OWN_CHECKPOINT}; DeepSeek-V4's DSpark may lie in the target's",
                "Name the draft's directory as 'model'.",
            )
        return self.model

    @property
    def reads_hidden_states(self) -> bool:
        """Whether the draft reads streams between the target's layers."""
        return self.method in ("eagle3", "dflash", "dspark")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the JSON object that the engine takes as ``--speculative-config``.

        Keys that memory does not depend on are not looked at.

        Raises:
            InvalidInputError: no such object, or one without ``method`` or
                ``num_speculative_tokens``.
        """
        try:
            given = json.loads(text)
        except json.JSONDecodeError as error:
            given, reason = None, str(error)
        else:
            reason = "it is a JSON object with method and num_speculative_tokens"
        if not isinstance(given, dict) or not {"method", "num_speculative_tokens"} <= given.keys():
            raise InvalidInputError(
                f"speculative_config={text!r}",
                reason,
                'Write {"method": "eagle3", "model": "DRAFT", "num_speculative_tokens": 3} for '
                "example.",
            )
        tokens, model = given["num_speculative_tokens"], given.get("model")
        if not isinstance(tokens, int) or isinstance(tokens, bool):
            raise InvalidInputError(
                f"num_speculative_tokens={tokens!r}", "it is a number", "Correct it."
            )
        return cls(str(given["method"]), tokens, None if model is None else Path(model))


@dataclass(frozen=True)
class DraftTarget:
    """What a draft must know of its target.

    Attributes:
        hidden_size: width of its stream.
        vocab_size: its vocabulary.
        max_model_len: tokens of a request.
        dtype: the model's, which the draft takes.
        ranks: tensor-parallel ranks, which share a draft's layers as well.
        block_tokens: tokens of a block that were asked for, or None.
    """

    hidden_size: int
    vocab_size: int
    max_model_len: int
    dtype: torch.dtype
    ranks: int = 1
    block_tokens: int | None = None


@dataclass(frozen=True)
class PlannedDraft:
    """What speculation takes on the fullest card.

    Attributes:
        weights: bytes of the draft's parameters, those that it shares with its target left out.
        caches: of its layers, in order; rows of a layer that slides are counted as all kept.
        buffers: what it keeps for every token of the largest step, and its rotary table.
        step: what it works on besides, in the largest step.
        eagle: vLLM looks one block further for prefixes, since the draft reads hidden states.
    """

    weights: int = 0
    caches: tuple[CacheKind, ...] = ()
    buffers: Estimate = _NOTHING
    step: Estimate = _NOTHING
    eagle: bool = False

    @property
    def estimate(self) -> Estimate:
        """Buffers and what a step takes."""
        how = f"{self.buffers.how}; {self.step.how}"
        return Estimate(self.buffers.bytes + self.step.bytes, how)


def plan_draft(speculation: Speculation, target: DraftTarget, step: Step) -> PlannedDraft:
    """Count what a way of drafting takes.

    Args:
        speculation: the way; not ``mtp``, which is counted with its target.
        target: what it drafts for.
        step: the largest step.

    Raises:
        InvalidInputError: a draft whose config cannot be read, is not planned, or does not belong
            to the target.
    """
    if speculation.method not in _ARCHITECTURES:
        return _without_model(speculation.method, target, step)
    config, stored = read_draft(speculation.own_model())
    architecture = (config.get("architectures") or ["none"])[0]
    known = _ARCHITECTURES[speculation.method]
    if architecture not in known:
        raise InvalidInputError(
            f"a draft {architecture} for method {speculation.method!r}",
            f"planned are {', '.join(known)}",
            "Name another draft.",
        )
    if config.get("quantization_config"):
        raise InvalidInputError(
            f"a quantised draft {architecture}",
            "drafts are planned in the model's dtype",
            "Plan with the unquantised draft.",
        )
    _check_belongs(config, speculation, target)
    try:
        if speculation.method == "medusa":
            return _medusa(config, target, step)
        return _layers(config, stored, target, step)
    except KeyError as error:
        raise InvalidInputError(
            f"a draft {architecture} without {error.args[0]}",
            "its config.json must have it",
            "Take the draft from where it was trained.",
        ) from error


def draft_problem(speculation: Speculation, target: DraftTarget) -> str | None:
    """What keeps a draft's checkpoint from being served, told from its config and its headers.

    Args:
        speculation: names it; of methods without a draft there is nothing to tell.
        target: what it drafts for.
    """
    if speculation.method not in _ARCHITECTURES:
        return None
    try:
        plan_draft(speculation, target, Step(1, 1, speculation.tokens))
        config, stored = read_draft(speculation.own_model())
    except InvalidInputError as error:
        return str(error)
    if stored is None:
        return f"{speculation.model}: there is no *.safetensors file here: download the weights"
    if speculation.method == "medusa":
        wanted = _medusa_values(config, config["vocab_size"])
    else:
        wanted = stored_values(config, stored, streams_of(config))
    found = sum(
        torch.Size(shape).numel() for name, (shape, _) in stored.items() if name not in _MAPS
    )
    if found == wanted:
        return None
    return (
        f"{speculation.model}: its tensors have {found} values, its config.json wants {wanted}: "
        "take a checkpoint that belongs to its config.json"
    )


def read_draft(path: Path) -> tuple[Mapping[str, Any], Headers | None]:
    """A draft's config, and the headers of its tensors where it has files.

    Raises:
        InvalidInputError: there is no config that can be read.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"draft {path}", f"no config.json can be read there ({error})", "Give its directory."
        ) from error
    if not isinstance(config, dict):
        raise InvalidInputError(f"draft {file}", "it is no JSON object", "Download it again.")
    stored = read_headers(path) if path.is_dir() else {}
    return config, stored or None


def _check_belongs(
    config: Mapping[str, Any], speculation: Speculation, target: DraftTarget
) -> None:
    heads = config.get("num_heads")
    if speculation.method == "medusa" and speculation.tokens != heads:
        raise InvalidInputError(
            f"num_speculative_tokens={speculation.tokens}",
            f"the draft has {heads} heads, each of which drafts one token",
            f"Use {heads}.",
        )
    read = config.get("target_hidden_size") or config.get("hidden_size")
    if read != target.hidden_size or config.get("vocab_size") != target.vocab_size:
        raise InvalidInputError(
            f"a draft for hidden_size={read} and vocab_size={config.get('vocab_size')}",
            f"the target has {target.hidden_size} and {target.vocab_size}",
            "Name a draft of this target.",
        )


def _without_model(method: str, target: DraftTarget, step: Step) -> PlannedDraft:
    size, how = 0, f"{method} keeps nothing on the card"
    if method == "ngram_gpu":
        size = step.sequences * (target.max_model_len + 1) * _FLOAT32
        how = f"ids and lengths of {step.sequences} requests of {target.max_model_len} tokens"
    return PlannedDraft(0, (), Estimate(size, how), _verification(target, step), False)


def _verification(target: DraftTarget, step: Step, drafted: int = 0, how: str = "") -> Estimate:
    """Rows of logits that drafts add to a step, in float32, beside what the draft itself takes."""
    rows = step.sequences * step.speculative_tokens
    return Estimate(
        rows * target.vocab_size * _FLOAT32 + drafted,
        f"{rows} rows of logits to verify{how}; not run on hardware",
    )


def _medusa(config: Mapping[str, Any], target: DraftTarget, step: Step) -> PlannedDraft:
    heads, rows = config["num_heads"], target.vocab_size
    if config.get("original_lm_head"):
        rows = config.get("truncated_vocab_size") or rows
    weights = _medusa_values(config, vocabulary_rows(rows, target.ranks))
    logits = step.sequences * heads * target.vocab_size * target.dtype.itemsize
    return PlannedDraft(
        weights * target.dtype.itemsize,
        (),
        Estimate(0, "medusa keeps nothing between steps"),
        _verification(target, step, logits, f", and logits of {heads} heads"),
        False,
    )


def _medusa_values(config: Mapping[str, Any], rows: int) -> int:
    """Values of all heads, whose matrices of logits have so many rows."""
    hidden, heads = config["hidden_size"], config["num_heads"]
    inner = hidden * (hidden + bool(config.get("medusa_fc_bias")))
    matrices = 1 if config.get("original_lm_head") else heads
    values: int = heads * config["num_hidden_layers"] * inner + matrices * rows * hidden
    return values


def _layers(
    config: Mapping[str, Any], stored: Headers | None, target: DraftTarget, step: Step
) -> PlannedDraft:
    """A draft with layers of its own, which reads hidden states of the target."""
    item, hidden, streams = target.dtype.itemsize, config["hidden_size"], streams_of(config)
    weights = layer_bytes(config, stored, streams=streams, ranks=target.ranks, itemsize=item)
    heads, width = heads_of(config)
    cache = key_value_cache(
        max(1, heads[1] // target.ranks), width, target.dtype, target.block_tokens
    )
    places = max(config.get("max_position_embeddings") or 0, target.max_model_len)
    architecture = config["architectures"][0]
    # vLLM keeps flags of rows that a step has more than the target's.
    flags = architecture in BLOCKS or (architecture in DSPARK and step.speculative_tokens > 1)
    return PlannedDraft(
        weights,
        (cache,) * config["num_hidden_layers"],
        draft_buffers(target, step, hidden, places * width * item, flags=flags),
        draft_step(target, step, streams),
        True,
    )


def draft_buffers(
    target: DraftTarget, step: Step, hidden: int, table: int, *, flags: bool, streams: int = 1
) -> Estimate:
    """What vLLM's proposer keeps for every token of the largest step, and a rotary table.

    Args:
        target: what is drafted for.
        step: the largest step.
        hidden: width of the draft.
        table: bytes of its rotary table.
        flags: vLLM keeps two flags for every token, since a step of the draft has more rows.
        streams: of the width ``hidden``, which vLLM keeps places for beside the embeddings.
    """
    # Ids, positions, slots and a row of numbers, hidden states and embeddings; flags of a block.
    token = (1 + streams) * hidden * target.dtype.itemsize + 2 * _FLOAT32 + 2 * _INDEX
    token += 2 if flags else 0
    return Estimate(
        step.tokens * token + step.sequences * _FLOAT32 + table,
        f"what the draft keeps for a step of {step.tokens} tokens, and its rotary table, unless it "
        "is the target's",
    )


def draft_step(target: DraftTarget, step: Step, streams: int) -> Estimate:
    """Hidden states of the target that a draft reads, and logits to verify."""
    return _verification(
        target,
        step,
        2 * step.tokens * streams * target.hidden_size * target.dtype.itemsize,
        f", and {streams} hidden states of {step.tokens} tokens, as they are collected and side by "
        "side",
    )
