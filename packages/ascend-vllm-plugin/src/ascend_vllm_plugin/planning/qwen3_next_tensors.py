"""The tensors of a Qwen3-Next checkpoint, and which part of each a rank of vLLM holds.

vLLM loads them into its own model; these tables count and check them. Names and shapes are those
that transformers 5.24 and vLLM 0.27.1 (``models/qwen3_next.py``, ``qwen3_next_mtp.py``) read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ascend_ops_core.checkpoint.table import TensorRule, WeightTable
from ascend_ops_core.errors import InvalidInputError

from ascend_vllm_plugin.planning.qwen3_next_config import Qwen3NextSpec

Rules = Iterator[tuple[str, TensorRule]]
DRAFT_PREFIX = "mtp."


@dataclass(frozen=True)
class Shard:
    """Half-open ranges of one rank; key-value heads that are fewer than ranks are held by several.

    Attributes:
        heads: query heads of full attention.
        kv_heads: its key-value heads.
        key_heads: key heads of Gated DeltaNet; each brings its value heads.
        dense: channels of the MLP of dense layers.
        intermediate: channels of each routed expert.
        shared: channels of the shared expert.
        joined: rows of the draft's projection of embedding and hidden state.
        vocabulary: rows of embedding and head.
    """

    heads: tuple[int, int]
    kv_heads: tuple[int, int]
    key_heads: tuple[int, int]
    dense: tuple[int, int]
    intermediate: tuple[int, int]
    shared: tuple[int, int]
    joined: tuple[int, int]
    vocabulary: tuple[int, int]

    @classmethod
    def of(cls, spec: Qwen3NextSpec, size: int, vocabulary: tuple[int, int]) -> Shard:
        """Ranges of the first of ``size`` tensor-parallel ranks.

        Raises:
            InvalidInputError: ``size`` does not divide heads or a network's channels.
        """
        check_ranks(spec, size)
        return cls(
            heads=(0, spec.num_attention_heads // size),
            kv_heads=(0, max(1, spec.num_key_value_heads // size)),
            key_heads=(0, spec.linear_num_key_heads // size),
            dense=(0, spec.intermediate_size // size),
            intermediate=(0, spec.moe_intermediate_size // size),
            shared=(0, spec.shared_intermediate_size // size),
            joined=(0, spec.hidden_size // size),
            vocabulary=vocabulary,
        )


def check_ranks(spec: Qwen3NextSpec, size: int, *, whole_experts: bool = False) -> None:
    """Refuse ranks that cannot share the model, and name how many can.

    Args:
        spec: the model's config.
        size: tensor-parallel ranks.
        whole_experts: ranks share routed experts out whole.

    Raises:
        InvalidInputError: ``size`` does not divide heads or a network's channels.
    """
    divided = {
        "num_attention_heads": spec.num_attention_heads,
        "linear_num_key_heads": spec.linear_num_key_heads,
    }
    if spec.n_routed_experts:
        divided["shared_expert_intermediate_size"] = spec.shared_intermediate_size
        if not whole_experts:
            divided["moe_intermediate_size"] = spec.moe_intermediate_size
    if not all(spec.moe_layers):
        divided["intermediate_size"] = spec.intermediate_size
    kv_heads = spec.num_key_value_heads

    def refused(ranks: int) -> Iterator[str]:
        if kv_heads % ranks and ranks % kv_heads:
            yield f"it must divide num_key_value_heads={kv_heads}, or be a multiple of it"
        yield from (f"it must divide {n}={v}" for n, v in divided.items() if v % ranks)

    reason = next(refused(size), None)
    if reason is not None:
        usable = [n for n in range(1, spec.num_attention_heads + 1) if not any(refused(n))]
        raise InvalidInputError(f"tensor_parallel_size={size}", reason, f"Use one of {usable}.")


def main_table(spec: Qwen3NextSpec, shard: Shard) -> WeightTable:
    """Tensors of the model, embedding and head included."""
    return WeightTable(dict(_main(spec, shard)), (DRAFT_PREFIX,))


def mtp_table(spec: Qwen3NextSpec, shard: Shard) -> WeightTable:
    """Tensors of the layer for multi-token prediction, which shares embedding and head."""
    return WeightTable(dict(_draft(spec, shard)), ("model.", "lm_head."))


def _main(spec: Qwen3NextSpec, shard: Shard) -> Rules:
    start, stop = shard.vocabulary
    for name in ("model.embed_tokens", "lm_head"):
        shape = (spec.vocab_size, spec.hidden_size)
        rows = (slice(start, stop),)
        yield f"{name}.weight", TensorRule(shape, f"{name}.weight", source=rows)
    yield from _norm(spec.hidden_size, "model.norm")
    for layer in range(spec.num_hidden_layers):
        name, linear = f"model.layers.{layer}", spec.is_delta_layer(layer)
        yield from _layer(spec, shard, name, linear=linear, experts=spec.moe_layers[layer])


def _draft(spec: Qwen3NextSpec, shard: Shard) -> Rules:
    hidden = spec.hidden_size
    if not spec.num_mtp_layers:
        return
    # vLLM shares the rows out and gathers what they give.
    rows = (slice(*shard.joined),)
    yield "mtp.fc.weight", TensorRule((hidden, 2 * hidden), "mtp.fc", source=rows)
    for norm in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        yield from _norm(hidden, f"mtp.{norm}")
    for layer in range(spec.num_mtp_layers):
        name = f"mtp.layers.{layer}"
        yield from _layer(spec, shard, name, linear=False, experts=spec.draft_has_experts)


def _norm(width: int, name: str) -> Rules:
    yield f"{name}.weight", TensorRule((width,), name)


def _layer(spec: Qwen3NextSpec, shard: Shard, name: str, *, linear: bool, experts: bool) -> Rules:
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield from _norm(spec.hidden_size, f"{name}.{norm}")
    attention = _delta if linear else _full
    yield from attention(spec, shard, f"{name}.linear_attn" if linear else f"{name}.self_attn")
    if not experts:
        yield from _network(spec.hidden_size, spec.intermediate_size, shard.dense, f"{name}.mlp")
        return
    yield f"{name}.mlp.gate.weight", TensorRule((spec.n_routed_experts, spec.hidden_size), name)
    for expert in range(spec.n_routed_experts):
        yield from _network(
            spec.hidden_size,
            spec.moe_intermediate_size,
            shard.intermediate,
            f"{name}.mlp.experts.{expert}",
        )
    shared = f"{name}.mlp.shared_expert"
    yield from _network(spec.hidden_size, spec.shared_intermediate_size, shard.shared, shared)
    yield f"{name}.mlp.shared_expert_gate.weight", TensorRule((1, spec.hidden_size), name)


def _delta(spec: Qwen3NextSpec, shard: Shard, name: str) -> Rules:
    """Tensors of Gated DeltaNet, which are sorted by key head."""
    hidden, keys = spec.hidden_size, shard.key_heads[1]
    each = spec.linear_num_value_heads // spec.linear_num_key_heads
    values = keys * each
    own = 2 * spec.linear_key_head_dim + 2 * each * spec.linear_value_head_dim
    for proj, rows in (("in_proj_qkvz", own), ("in_proj_ba", 2 * each)):
        shape = (spec.linear_num_key_heads * rows, hidden)
        yield f"{name}.{proj}.weight", TensorRule(shape, name, source=(slice(0, keys * rows),))
    width = spec.linear_num_value_heads * spec.linear_value_head_dim
    channels = 2 * spec.linear_num_key_heads * spec.linear_key_head_dim + width
    held = 2 * keys * spec.linear_key_head_dim + values * spec.linear_value_head_dim
    taps = TensorRule((channels, 1, spec.linear_conv_kernel_dim), name, source=(slice(0, held),))
    yield f"{name}.conv1d.weight", taps
    for vector in ("dt_bias", "A_log"):
        rule = TensorRule((spec.linear_num_value_heads,), name, source=(slice(0, values),))
        yield f"{name}.{vector}", rule
    yield from _norm(spec.linear_value_head_dim, f"{name}.norm")
    part = (slice(None), slice(0, values * spec.linear_value_head_dim))
    yield f"{name}.out_proj.weight", TensorRule((hidden, width), name, source=part)


def _full(spec: Qwen3NextSpec, shard: Shard, name: str) -> Rules:
    """Tensors of full attention, whose queries come with a gate each."""
    hidden, dim = spec.hidden_size, spec.head_dim
    heads, kv_heads = spec.num_attention_heads, spec.num_key_value_heads
    for proj, whole, held in (
        ("q", 2 * heads, 2 * shard.heads[1]),
        ("k", kv_heads, shard.kv_heads[1]),
        ("v", kv_heads, shard.kv_heads[1]),
    ):
        rule = TensorRule((whole * dim, hidden), name, source=(slice(0, held * dim),))
        yield f"{name}.{proj}_proj.weight", rule
    for norm in ("q_norm", "k_norm"):
        yield from _norm(dim, f"{name}.{norm}")
    part = (slice(None), slice(0, shard.heads[1] * dim))
    yield f"{name}.o_proj.weight", TensorRule((hidden, heads * dim), name, source=part)


def _network(hidden: int, inter: int, part: tuple[int, int], name: str) -> Rules:
    """Tensors of one gated network, of which this rank has some channels."""
    rows = slice(*part)
    for proj in ("gate_proj", "up_proj"):
        yield f"{name}.{proj}.weight", TensorRule((inter, hidden), name, source=(rows,))
    rule = TensorRule((hidden, inter), name, source=(slice(None), rows))
    yield f"{name}.down_proj.weight", rule
