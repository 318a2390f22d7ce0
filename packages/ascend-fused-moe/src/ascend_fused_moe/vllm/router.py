"""Routers from a model's configuration."""

from __future__ import annotations

from typing import Any

from ascend_ops_core.errors import InvalidInputError

from ascend_fused_moe.routers import RouterSettings

__all__ = ["router_settings"]

_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")


def router_settings(config: Any) -> RouterSettings:
    """What a model's configuration says of its routers.

    Args:
        config: with Hugging Face's names: one of ``n_routed_experts``, ``num_experts`` and
            ``num_local_experts``, and ``num_experts_per_tok``; if it has them, ``scoring_func``,
            ``norm_topk_prob``, ``routed_scaling_factor``, ``n_group`` and ``topk_group``.

    Raises:
        InvalidInputError: it does not say how many experts there are, or how many a token visits.
    """
    experts = next((getattr(config, name, None) or 0 for name in _EXPERTS if _has(config, name)), 0)
    top_k = getattr(config, "num_experts_per_tok", None) or 0
    if not experts or not top_k:
        raise InvalidInputError(
            f"a config of {experts} experts, {top_k} for a token",
            f"routing needs one of {', '.join(_EXPERTS)}, and num_experts_per_tok",
            "Add them to config.json.",
        )
    given = {
        "scoring": getattr(config, "scoring_func", None),
        "renormalize": getattr(config, "norm_topk_prob", None),
        "scale": getattr(config, "routed_scaling_factor", None),
        "groups": getattr(config, "n_group", None),
        "top_groups": getattr(config, "topk_group", None),
    }
    return RouterSettings(
        experts, top_k, **{name: value for name, value in given.items() if value is not None}
    )


def _has(config: Any, name: str) -> bool:
    return getattr(config, name, None) is not None
