"""Which tensors of a checkpoint belong to the draft layers, and where each goes."""

from __future__ import annotations

from ascend_ops_core.checkpoint.table import TensorRule, WeightTable
from ascend_ops_core.errors import InvalidInputError

from ascend_models_kimi.kimi_linear.config import KimiLinearSpec
from ascend_models_kimi.kimi_linear.sharding import Shard
from ascend_models_kimi.kimi_linear.weights import VISION_PREFIXES, layer_rules


def check_drafts(spec: KimiLinearSpec) -> None:
    """Refuse MTP speculation for a model without MTP layers.

    Raises:
        InvalidInputError: it has none.
    """
    if not spec.num_mtp_layers:
        raise InvalidInputError(
            "speculative method 'mtp'",
            "the model's config has num_nextn_predict_layers=0",
            "Use a checkpoint with MTP layers, or serve without speculation.",
        )


def mtp_table(spec: KimiLinearSpec, shard: Shard, root: str = "") -> WeightTable:
    """Tensors of the draft layers, whose embedding and head are the main model's.

    Args:
        spec: the model's config.
        shard: this rank's part.
        root: in front of all names of the checkpoint.
    """
    hidden, first = spec.hidden_size, spec.num_hidden_layers
    rules: dict[str, TensorRule] = {}
    ignored = [f"{root}model.{part}" for part in ("embed_tokens.", "norm.", "output_attn_res_")]
    ignored += [f"{root}model.layers.{layer}." for layer in range(first)]
    for layer in range(first, first + spec.num_mtp_layers):
        name = f"{root}model.layers.{layer}"
        param = f"model.layers.{layer}"
        rules.update(layer_rules(spec, shard, layer, name, f"{param}.mtp_block", mixed=False))
        for norm in ("enorm", "hnorm"):
            rules[f"{name}.{norm}.weight"] = TensorRule((hidden,), f"{param}.{norm}")
        head = TensorRule((hidden,), f"{param}.shared_head_norm")
        rules[f"{name}.shared_head.norm.weight"] = head
        rules[f"{name}.eh_proj.weight"] = TensorRule((hidden, 2 * hidden), f"{param}.eh_proj")
        # Copies of what the main model has, and nothing of a mixed stream.
        ignored += [
            f"{name}.{part}"
            for part in ("embed_tokens.", "shared_head.head.", "self_attention_res_", "mlp_res_")
        ]
    return WeightTable(rules, (*ignored, f"{root}lm_head.", *(VISION_PREFIXES if root else ())))
