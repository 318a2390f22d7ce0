"""Tensors of DeepSeek-V4's DSpark draft, which lie under ``mtp.`` in a checkpoint."""

from __future__ import annotations

from ascend_ops_core.checkpoint.table import TensorRule, WeightTable

from ascend_models_deepseek.deepseek_v4.dspark_config import DSparkSpec
from ascend_models_deepseek.deepseek_v4.sharding import Shard
from ascend_models_deepseek.deepseek_v4.weights import (
    NOT_MTP,
    hc_head_rules,
    layer_rules,
    vocabulary_rule,
)

__all__ = ["CONFIDENCE", "dspark_table"]

CONFIDENCE = "model.confidence_head.weight"
"""The parameter that a checkpoint may lack."""


def dspark_table(spec: DSparkSpec, shard: Shard) -> WeightTable:
    """All tensors of the draft. Its embedding and head default to the target's.

    The first layer brings what combines the target's hidden states, the last one all that follows
    the layers.
    """
    main, hidden = spec.main, spec.hidden_size
    first, last = "mtp.0", f"mtp.{main.num_mtp_layers - 1}"
    joined = len(spec.target_layers) * spec.target_hidden_size
    markov = (spec.vocab_size, spec.markov_rank)
    rules = {
        f"{first}.main_proj.weight": TensorRule((hidden, joined), "model.main_proj"),
        f"{first}.main_norm.weight": TensorRule((hidden,), "model.main_norm"),
        f"{last}.norm.weight": TensorRule((hidden,), "model.norm"),
        f"{first}.embed.weight": vocabulary_rule(
            main, shard, "model.embed_tokens.weight", optional=True
        ),
        f"{last}.head.weight": vocabulary_rule(main, shard, "lm_head.weight", optional=True),
        f"{last}.confidence_head.proj.weight": TensorRule(
            (1, hidden + spec.markov_rank), CONFIDENCE, optional=True
        ),
    }
    for one in ("markov_w1", "markov_w2"):
        name = f"{last}.markov_head.{one}.weight"
        rules[name] = TensorRule(markov, f"model.markov_head.{one}")
    rules.update(hc_head_rules(main, f"{last}.", "model.hc_head"))
    for i, layer in enumerate(spec.layers):
        rules.update(layer_rules(main, shard, layer, f"mtp.{i}", f"model.layers.{layer}.block"))
    return WeightTable(rules, NOT_MTP)
