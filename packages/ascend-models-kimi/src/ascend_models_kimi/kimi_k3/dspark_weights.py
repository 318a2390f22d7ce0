"""Which tensors a Kimi-K3 DSpark draft's checkpoint has, and where each goes."""

from __future__ import annotations

from ascend_ops_core.checkpoint.table import TensorRule, WeightTable

from ascend_models_kimi.kimi_k3.dspark_config import K3DSparkSpec
from ascend_models_kimi.kimi_linear.sharding import Shard
from ascend_models_kimi.kimi_linear.weights import layer_rules

IGNORED = ("confidence_head.", "embed_tokens.", "lm_head.")
"""For training alone, and copies of what the target has."""


def dspark_table(spec: K3DSparkSpec, shard: Shard) -> WeightTable:
    """Tensors of the draft, whose embedding and head are the target's.

    Args:
        spec: the draft's config.
        shard: this rank's part.
    """
    text, streams = spec.text, spec.target_hidden_size * len(spec.target_layers)
    hidden, rank = text.hidden_size, spec.markov_rank
    rules = {
        "context_proj.weight": TensorRule((hidden, streams), "model.context_proj"),
        "context_norm.weight": TensorRule((hidden,), "model.context_norm"),
        "final_norm.weight": TensorRule((hidden,), "model.final_norm"),
    }
    for part in ("markov_w1", "markov_w2"):
        name = f"markov_head.{part}"
        rules[f"{name}.weight"] = TensorRule((text.vocab_size, rank), name)
    for layer in range(text.num_hidden_layers):
        rules.update(
            layer_rules(text, shard, layer, f"layers.{layer}", f"model.layers.{layer}", mixed=False)
        )
    return WeightTable(rules, IGNORED)
