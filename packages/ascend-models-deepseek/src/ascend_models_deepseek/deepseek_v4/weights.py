"""DeepSeek-V4's checkpoint: which tensors it has, and where each goes in the model.

One table of rules per model drives loading and checking, so that a bad checkpoint is reported
whole: every missing, unexpected, wrongly shaped or quantized tensor at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from ascend_attention.caches import overlap_of
from ascend_fused_moe.layers.routed_experts import AscendRoutedExperts
from torch import nn

from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_models_deepseek.deepseek_v4.sharding import Shard
from ascend_models_deepseek.mapped_pages import release_pages

_LOADABLE_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_LOADABLE_INTEGERS = (torch.int64, torch.int32)
_MOST_REPORTED = 40


class CheckpointError(ValueError):
    """A checkpoint that does not fit the model; the message lists every problem."""


@dataclass(frozen=True)
class TensorRule:
    """Where one checkpoint tensor goes.

    Attributes:
        shape: its full shape in the checkpoint.
        param: name of the model's parameter.
        target: index into the parameter.
        source: index into the tensor, after ``view``; selects this rank's part.
        view: shape in which the tensor is read, or None for its own.
        below: for a table of ids, the number that all of them lie below; None for weights.
        optional: may be absent.
    """

    shape: tuple[int, ...]
    param: str
    target: tuple[int | slice, ...] = ()
    source: tuple[slice, ...] = ()
    view: tuple[int, ...] | None = None
    below: int | None = None
    optional: bool = False

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes that the checkpoint may have."""
        return (self.shape,)

    @property
    def loadable(self) -> tuple[torch.dtype, ...]:
        """Dtypes in which the checkpoint may store it."""
        return _LOADABLE_FLOATS if self.below is None else _LOADABLE_INTEGERS

    @property
    def filled(self) -> str | None:
        """The model's parameter that it goes to, if any."""
        return self.param

    def value_problems(self, name: str, tensor: torch.Tensor) -> list[str]:
        """Ids that no expert has, which would fail only when a token meets them."""
        if self.below is None:
            return []
        low, high = (int(v) for v in tensor.aminmax())
        if low >= 0 and high < self.below:
            return []
        return [f"values of {name} lie in [{low}, {high}], expected [0, {self.below - 1}]"]

    def load(self, tensor: torch.Tensor, model: nn.Module) -> None:
        """Copy this rank's part of ``tensor`` to its place in ``model``."""
        part = tensor if self.view is None else tensor.view(self.view)
        model.get_parameter(self.param).data[self.target].copy_(part[self.source])


@dataclass(frozen=True)
class ExpertRule(TensorRule):
    """Where one tensor of a routed expert goes: to every place of this rank that holds the expert.

    Attributes:
        expert: the logical expert.
        tensor: which of its tensors, as :meth:`AscendRoutedExperts.load_expert` names them.
    """

    expert: int = 0
    tensor: str = ""

    def load(self, tensor: torch.Tensor, model: nn.Module) -> None:
        """See :meth:`TensorRule.load`; where the expert lies elsewhere, nothing is read."""
        owner, _, name = self.param.rpartition(".")
        experts = model.get_submodule(owner)
        assert isinstance(experts, AscendRoutedExperts)
        if experts.holds(self.expert):
            value = tensor.to(experts.get_parameter(name).dtype)
            experts.load_expert(self.expert, self.tensor, value)


class WeightTable:
    """All tensors of one model.

    Args:
        rules: rule by checkpoint name.
        ignored_prefixes: names of other models in the same checkpoint.
    """

    def __init__(self, rules: Mapping[str, TensorRule], ignored_prefixes: tuple[str, ...]) -> None:
        self.rules = dict(rules)
        self.ignored_prefixes = ignored_prefixes

    def problems(self, found: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> list[str]:
        """Every way in which a checkpoint's tensors do not fit, one line each.

        Args:
            found: shape and dtype by name.
        """
        lines = []
        absent = sorted(set(self.rules) - set(found))
        # Only names that are in question are offered: the rest of a model is full of close ones.
        strangers = sorted(
            name
            for name in set(found) - set(self.rules)
            if not name.startswith(self.ignored_prefixes)
        )
        near = _Nearest()
        for name in absent:
            if not self.rules[name].optional:
                lines.append(
                    f"missing {name} {list(self.rules[name].shape)}{near(name, strangers)}"
                )
        for name in sorted(found):
            if name.startswith(self.ignored_prefixes):
                continue
            shape, dtype = found[name]
            rule = self.rules.get(name)
            if rule is None:
                lines.append(f"unexpected {name} {list(shape)}{near(name, absent)}")
                continue
            if dtype not in rule.loadable:
                lines.append(
                    f"dtype of {name} is {_short(dtype)}, loadable are "
                    f"{', '.join(map(_short, rule.loadable))}"
                )
            if shape not in rule.shapes:
                expected = " or ".join(str(list(one)) for one in rule.shapes)
                lines.append(f"shape of {name} is {list(shape)}, expected {expected}")
        return lines

    def load(self, model: nn.Module, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Fill the model's parameters.

        Args:
            model: holds the parameters that the rules name.
            weights: name and tensor, in any order, each name once.

        Returns:
            Names of the parameters that were filled.

        Raises:
            CheckpointError: some tensors do not fit. A tensor that does not fit is never copied.
        """
        found: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        bad_values = []
        for name, tensor in weights:
            if name.startswith(self.ignored_prefixes):
                continue
            found[name] = tuple(tensor.shape), tensor.dtype
            rule = self.rules.get(name)
            if (
                rule is not None
                and tuple(tensor.shape) in rule.shapes
                and tensor.dtype in rule.loadable
            ):
                rule.load(tensor, model)
                bad_values += rule.value_problems(name, tensor)
            release_pages(tensor)
        raise_for(self.problems(found) + bad_values)
        for module in model.modules():
            if isinstance(module, AscendRoutedExperts):
                module.process_weights_after_loading()
        filled = (self.rules[name].filled for name in found)
        return {name for name in filled if name is not None}


class _Nearest:
    """Offers close names for the first problems; a search takes long among many thousands."""

    def __init__(self) -> None:
        self._left = _MOST_REPORTED

    def __call__(self, name: str, others: list[str]) -> str:
        if not self._left:
            return ""
        self._left -= 1
        close = difflib.get_close_matches(name, others, n=1, cutoff=0.8)
        return f" (closest: {close[0]})" if close else ""


def raise_for(problems: list[str]) -> None:
    """Raise one :class:`CheckpointError` that lists all problems, if there are any."""
    if not problems:
        return
    shown = problems[:_MOST_REPORTED]
    more = len(problems) - len(shown)
    text = "\n".join(f"  - {line}" for line in shown)
    if more:
        text += f"\n  - and {more} more"
    raise CheckpointError(
        f"the checkpoint does not fit the config: {len(problems)} problem(s)\n{text}\n"
        "The model was not loaded. Check that config.json and the safetensors files belong "
        "together, in the tensor names that the model was published with."
    )


def main_table(spec: DeepseekV4Spec, shard: Shard) -> WeightTable:
    """Tensors of the main model, embedding and head included."""
    rules = {
        "embed.weight": _vocab(spec, shard, "model.embed_tokens.weight"),
        "head.weight": _vocab(spec, shard, "lm_head.weight"),
        "norm.weight": TensorRule((spec.hidden_size,), "model.norm"),
    }
    rules.update(_hc_head(spec, "", "model.hc_head"))
    for layer in range(spec.num_hidden_layers):
        rules.update(_layer(spec, shard, layer, f"layers.{layer}", f"model.layers.{layer}"))
    return WeightTable(rules, ("mtp.",))


def mtp_table(spec: DeepseekV4Spec, shard: Shard) -> WeightTable:
    """Tensors of the MTP draft. Its embedding and head default to the main model's."""
    hidden = spec.hidden_size
    rules: dict[str, TensorRule] = {}
    for i in range(spec.num_mtp_layers):
        layer = spec.num_hidden_layers + i
        name, param = f"mtp.{i}", f"model.layers.{layer}"
        rules.update(_layer(spec, shard, layer, name, f"{param}.block"))
        rules.update(_hc_head(spec, f"{name}.", f"{param}.hc_head"))
        for norm in ("enorm", "hnorm", "norm"):
            rules[f"{name}.{norm}.weight"] = TensorRule((hidden,), f"{param}.{norm}")
        for proj in ("e_proj", "h_proj"):
            rules[f"{name}.{proj}.weight"] = TensorRule((hidden, hidden), f"{param}.{proj}")
        if i == 0:
            rules[f"{name}.emb.tok_emb.weight"] = _vocab(
                spec, shard, "model.embed_tokens.weight", optional=True
            )
            rules[f"{name}.head.weight"] = _vocab(spec, shard, "lm_head.weight", optional=True)
    others = ("layers.", "embed.", "head.", "norm.", "hc_head_")
    return WeightTable(rules, others)


def _vocab(spec: DeepseekV4Spec, shard: Shard, param: str, optional: bool = False) -> TensorRule:
    start, stop = shard.vocabulary
    return TensorRule(
        (spec.vocab_size, spec.hidden_size),
        param,
        (slice(0, stop - start),),
        (slice(start, stop),),
        optional=optional,
    )


def _hc_head(spec: DeepseekV4Spec, name: str, param: str) -> Iterator[tuple[str, TensorRule]]:
    n = spec.hc_mult
    yield f"{name}hc_head_fn", TensorRule((n, n * spec.hidden_size), f"{param}.fn")
    yield f"{name}hc_head_scale", TensorRule((1,), f"{param}.scale")
    yield f"{name}hc_head_base", TensorRule((n,), f"{param}.base")


def _layer(
    spec: DeepseekV4Spec, shard: Shard, layer: int, name: str, param: str
) -> Iterator[tuple[str, TensorRule]]:
    n, hidden = spec.hc_mult, spec.hidden_size
    mixes = (2 + n) * n
    for part in ("attn", "ffn"):
        yield f"{name}.{part}_norm.weight", TensorRule((hidden,), f"{param}.{part}_norm")
        hc = f"{name}.hc_{part}"
        yield f"{hc}_fn", TensorRule((mixes, n * hidden), f"{param}.hc_{part}.fn")
        yield f"{hc}_scale", TensorRule((3,), f"{param}.hc_{part}.scale")
        yield f"{hc}_base", TensorRule((mixes,), f"{param}.hc_{part}.base")
    yield from _attention(spec, shard, layer, f"{name}.attn", f"{param}.attn")
    yield from _moe(spec, shard, layer, f"{name}.ffn", f"{param}.ffn")


def _attention(
    spec: DeepseekV4Spec, shard: Shard, layer: int, name: str, param: str
) -> Iterator[tuple[str, TensorRule]]:
    hidden, lora, width = spec.hidden_size, spec.q_lora_rank, spec.head_dim
    heads, projection = shard.heads, shard.projection
    fused = f"{param}.wqa_wkv"
    yield f"{name}.wq_a.weight", TensorRule((lora, hidden), fused, (slice(0, lora),))
    yield f"{name}.wkv.weight", TensorRule((width, hidden), fused, (slice(lora, None),))
    yield f"{name}.q_norm.weight", TensorRule((lora,), f"{param}.q_norm")
    yield f"{name}.kv_norm.weight", TensorRule((width,), f"{param}.kv_norm")
    yield (
        f"{name}.wq_b.weight",
        TensorRule(
            (spec.num_attention_heads * width, lora),
            f"{param}.wq_b",
            source=(slice(heads[0] * width, heads[1] * width),),
        ),
    )
    yield (
        f"{name}.attn_sink",
        TensorRule((spec.num_attention_heads,), f"{param}.attn_sink", source=(slice(*heads),)),
    )
    group_in = spec.num_attention_heads // spec.o_groups * width
    group_out = spec.o_lora_rank
    yield (
        f"{name}.wo_a.weight",
        TensorRule(
            (spec.o_groups * group_out, group_in),
            f"{param}.o_proj.wo_a",
            source=(slice(*projection.groups), slice(None), slice(*projection.channels)),
            view=(spec.o_groups, group_out, group_in),
        ),
    )
    yield (
        f"{name}.wo_b.weight",
        TensorRule(
            (hidden, spec.o_groups * group_out),
            f"{param}.o_proj.wo_b",
            source=(slice(None), slice(*projection.latents)),
        ),
    )
    ratio = spec.compress_ratio(layer)
    if ratio:
        yield from _compressor(hidden, width, ratio, f"{name}.compressor", f"{param}.compressor")
    if ratio == 4:
        index = spec.index_n_heads * spec.index_head_dim
        target = f"{param}.indexer"
        yield f"{name}.indexer.wq_b.weight", TensorRule((index, lora), f"{target}.wq_b")
        yield (
            f"{name}.indexer.weights_proj.weight",
            TensorRule((spec.index_n_heads, hidden), f"{target}.weights_proj"),
        )
        yield from _compressor(
            hidden,
            spec.index_head_dim,
            ratio,
            f"{name}.indexer.compressor",
            f"{target}.compressor",
        )


def _compressor(
    hidden: int, width: int, ratio: int, name: str, param: str
) -> Iterator[tuple[str, TensorRule]]:
    series = overlap_of(ratio) * width
    fused = f"{param}.wkv_wgate"
    yield f"{name}.wkv.weight", TensorRule((series, hidden), fused, (slice(0, series),))
    yield f"{name}.wgate.weight", TensorRule((series, hidden), fused, (slice(series, None),))
    yield f"{name}.ape", TensorRule((ratio, series), f"{param}.ape")
    yield f"{name}.norm.weight", TensorRule((width,), f"{param}.norm")


def _moe(
    spec: DeepseekV4Spec, shard: Shard, layer: int, name: str, param: str
) -> Iterator[tuple[str, TensorRule]]:
    hidden, experts = spec.hidden_size, spec.n_routed_experts
    yield f"{name}.gate.weight", TensorRule((experts, hidden), f"{param}.gate")
    if spec.is_hash_layer(layer):
        shape = (spec.vocab_size, spec.num_experts_per_tok)
        yield f"{name}.gate.tid2eid", TensorRule(shape, f"{param}.tid2eid", below=experts)
    else:
        yield f"{name}.gate.bias", TensorRule((experts,), f"{param}.gate_bias")
    routed = spec.moe_intermediate_size
    for e in range(experts):
        for tensor, rule in _ffn(hidden, routed, shard.intermediate, f"{param}.experts"):
            yield (
                f"{name}.experts.{e}.{tensor}.weight",
                ExpertRule(rule.shape, rule.param, source=rule.source, expert=e, tensor=tensor),
            )
    if spec.n_shared_experts:
        shared = routed * spec.n_shared_experts
        part = shard.shared_intermediate
        for tensor, rule in _ffn(hidden, shared, part, f"{param}.shared_experts"):
            yield f"{name}.shared_experts.{tensor}.weight", rule


def _ffn(
    hidden: int, inter: int, part: tuple[int, int], param: str
) -> Iterator[tuple[str, TensorRule]]:
    """Rules of one gated network, of which this rank has some channels."""
    local = part[1] - part[0]
    rows = (slice(*part),)
    for tensor, first in (("w1", 0), ("w3", local)):
        target = (slice(first, first + local),)
        yield tensor, TensorRule((inter, hidden), f"{param}.w13", target, rows)
    yield "w2", TensorRule((hidden, inter), f"{param}.w2", source=(slice(None), *rows))


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
