"""What a Qwen3 block draft's config.json says, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.layers.block_drafts import BlockShape

__all__ = ["BlockDraftSpec", "ConvolutionSpec", "SelectorSpec"]

_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class ConvolutionSpec:
    """DFlash2's convolution around attention and the MLP.

    Attributes:
        taps: rows that one sees, itself among them.
        group: channels that share a coefficient.
    """

    taps: int
    group: int


@dataclass(frozen=True)
class SelectorSpec:
    """DFlash2's choice among candidates.

    Attributes:
        rank: channels of the code books.
        candidates: tokens of a place that are looked at.
        input_scale: factor on the embeddings.
        output_scale: factor on the logits.
        softcap: ``c`` of ``c tanh(logits / c)``; None for none.
    """

    rank: int
    candidates: int
    input_scale: float = 1.0
    output_scale: float = 1.0
    softcap: float | None = None


@dataclass(frozen=True)
class BlockDraftSpec(BlockShape):
    """A draft model with a Qwen3 backbone that fills a block of places in one pass.

    Attributes:
        windows: for each layer the tokens that one sees, or None for all.
        causal: for each layer whether a query sees those behind it not.
        convolution: DFlash2's, or None.
        selector: the same.
        markov_rank: of DSpark's Markov head; 0 for none.
        logit_scale: factor on the logits and the Markov head's correction.
    """

    windows: tuple[int | None, ...]
    causal: tuple[bool, ...]
    convolution: ConvolutionSpec | None = None
    selector: SelectorSpec | None = None
    markov_rank: int = 0
    logit_scale: float = 1.0

    @classmethod
    def from_config(cls, config: Any) -> BlockDraftSpec:
        """Read a config of transformers.

        Raises:
            InvalidInputError: a field is missing or makes no sense; the message names it.
        """
        given: Mapping[str, Any] = getattr(config, "dflash_config", None) or {}

        def of(name: str, default: Any = None) -> Any:
            value = given.get(name)
            return getattr(config, name, default) if value is None else value

        architecture = (getattr(config, "architectures", None) or [""])[0]
        dspark = "DSpark" in architecture
        second = "DFlash2" in architecture
        layers = of("target_layer_ids")
        if layers is None and getattr(config, "eagle_aux_hidden_state_layer_ids", None):
            layers = [one - 1 for one in config.eagle_aux_hidden_state_layer_ids]
        needed = {"target_layer_ids": layers, "mask_token_id": of("mask_token_id")}
        if dspark:
            needed["markov_rank"] = of("markov_rank")
        if second:
            names = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
            needed |= {name: of(name) for name in names}
        for name, value in needed.items():
            if value is None or value == []:
                raise InvalidInputError(
                    f"a draft {architecture} without {name}",
                    "its config.json must have it, at the top or in dflash_config",
                    "Add it, or take the draft from where it was trained.",
                )
        mask = int(of("mask_token_id"))
        if not 0 <= mask < config.vocab_size:
            raise InvalidInputError(
                f"mask_token_id={mask}",
                f"the vocabulary has the ids 0 to {config.vocab_size - 1}",
                "Correct the draft's config.json.",
            )
        windows, causal = _attention(config, given)
        return cls(
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            draft_vocab_size=of("draft_vocab_size") or config.vocab_size,
            target_layers=tuple(layers),
            target_hidden_size=of("target_hidden_size") or config.hidden_size,
            mask_token=mask,
            from_anchor=bool(of("sample_from_anchor", dspark)),
            windows=windows,
            causal=causal,
            convolution=_convolution(config, of) if second else None,
            selector=_selector(config, of) if second else None,
            markov_rank=_at_least_1("markov_rank", of("markov_rank")) if dspark else 0,
            logit_scale=float(of("logit_scale", 1.0)),
        )


def _attention(
    config: Any, given: Mapping[str, Any]
) -> tuple[tuple[int | None, ...], tuple[bool, ...]]:
    """Window and causality of every layer.

    A layer of sliding attention is causal unless ``causal`` says otherwise, one of full attention
    is not; ``use_swa`` makes every layer slide, and then none is causal by itself.
    """
    count = config.num_hidden_layers
    kinds = list(getattr(config, "layer_types", None) or [])
    if kinds and (len(kinds) != count or set(kinds) - {_FULL, _SLIDING}):
        raise InvalidInputError(
            f"layer_types={kinds}",
            f"it names {_FULL!r} or {_SLIDING!r} for each of {count} layers",
            "Correct the draft's config.json.",
        )
    sliding = [kind == _SLIDING for kind in kinds] or [False] * count
    causal = list(sliding)
    if given.get("use_swa") and not any(sliding):
        sliding = [True] * count
    override = given.get("causal")
    if override is not None:
        causal = [bool(override)] * count
    window = given.get("swa_window_size") or getattr(config, "sliding_window", None)
    if any(sliding) and not window:
        raise InvalidInputError(
            "a draft with sliding attention and no window",
            "sliding_window, or swa_window_size in dflash_config, says how many tokens one sees",
            "Add it to the draft's config.json.",
        )
    for slides, one_way in zip(sliding, causal, strict=True):
        if slides and not one_way:
            raise InvalidInputError(
                "a draft whose layers slide and see what is behind them",
                "a window is counted from a token back, so such a layer is causal here",
                "Set causal to true in dflash_config if the draft was trained so.",
            )
    if given.get("attention_sink_bias"):
        raise InvalidInputError(
            "a draft with attention_sink_bias", "its layers have no sinks", "Take another draft."
        )
    windows = tuple(window if slides else None for slides in sliding)
    return windows, tuple(causal)


def _at_least_1(name: str, value: Any) -> int:
    if int(value) < 1:
        raise InvalidInputError(
            f"{name}={value}", "it is at least 1", "Correct the draft's config.json."
        )
    return int(value)


def _convolution(config: Any, of: Any) -> ConvolutionSpec:
    group = _at_least_1("conv_group_size", of("conv_group_size"))
    if config.hidden_size % group:
        raise InvalidInputError(
            f"conv_group_size={group}",
            f"it divides hidden_size={config.hidden_size}",
            "Correct the draft's config.json.",
        )
    return ConvolutionSpec(_at_least_1("conv_kernel_size", of("conv_kernel_size")), group)


def _selector(config: Any, of: Any) -> SelectorSpec:
    candidates = _at_least_1("selector_top_k", of("selector_top_k"))
    if candidates > config.vocab_size:
        raise InvalidInputError(
            f"selector_top_k={candidates}",
            f"the vocabulary has {config.vocab_size} tokens",
            "Correct the draft's config.json.",
        )
    softcap = of("final_logit_softcapping")
    return SelectorSpec(
        _at_least_1("selector_rank", of("selector_rank")),
        candidates,
        float(of("input_embedding_scale", 1.0)),
        float(of("output_multiplier", 1.0)),
        None if not softcap else float(softcap),
    )
