"""What a block draft's config says, and what of it is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ascend_ops_core.errors import InvalidInputError
from ascend_specdec.qwen3_blocks.config import BlockDraftSpec
from ascend_specdec.testing.dense_block_draft import DenseDraftConfig


def config_of(kind: str, **changes: Any) -> Any:
    """A config as transformers would give it; ``draft`` changes what dflash_config holds."""
    given = DenseDraftConfig(kind, (0, 2)).to_json()
    draft = changes.pop("draft", {})
    if "dflash_config" in given:
        given["dflash_config"] |= draft
    return SimpleNamespace(**(given | changes))


def test_every_kind_is_read() -> None:
    dflash, second, dspark = (
        BlockDraftSpec.from_config(config_of(kind)) for kind in ("dflash", "dflash2", "dspark")
    )
    assert (dflash.queries(4), second.queries(4), dspark.queries(4)) == (5, 5, 4)
    assert dflash.target_layers == (0, 2)
    assert dflash.causal == (False, False)
    assert dflash.windows == (None, None)
    assert second.convolution is not None
    assert second.convolution.taps == 3
    assert second.selector is not None
    assert second.selector.candidates == 4
    assert dspark.markov_rank == 16
    assert dspark.convolution is None


def test_layers_that_slide_are_causal() -> None:
    kinds = ["full_attention", "sliding_attention"]
    spec = BlockDraftSpec.from_config(config_of("dflash", layer_types=kinds, sliding_window=64))
    assert spec.windows == (None, 64)
    assert spec.causal == (False, True)


def test_an_override_makes_every_layer_causal() -> None:
    spec = BlockDraftSpec.from_config(
        config_of("dflash", draft={"causal": True, "use_swa": True, "swa_window_size": 8})
    )
    assert spec.windows == (8, 8)
    assert spec.causal == (True, True)


def test_layers_named_as_speculators_name_them() -> None:
    config = config_of("dflash", draft={"target_layer_ids": None})
    config.eagle_aux_hidden_state_layer_ids = [1, 3]
    assert BlockDraftSpec.from_config(config).target_layers == (0, 2)


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        ("dflash", {"draft": {"mask_token_id": None}}, "without mask_token_id"),
        ("dflash", {"draft": {"mask_token_id": 300}}, "mask_token_id=300"),
        ("dflash", {"draft": {"target_layer_ids": []}}, "without target_layer_ids"),
        ("dflash", {"layer_types": ["full_attention"]}, "layer_types="),
        ("dflash", {"draft": {"use_swa": True}}, "no window"),
        ("dflash", {"draft": {"use_swa": True}, "sliding_window": 9}, "behind them"),
        ("dflash", {"draft": {"attention_sink_bias": True}}, "attention_sink_bias"),
        ("dflash2", {"draft": {"conv_group_size": 7}}, "conv_group_size=7"),
        ("dflash2", {"draft": {"selector_top_k": 301}}, "selector_top_k=301"),
        ("dflash2", {"draft": {"selector_rank": None}}, "without selector_rank"),
        ("dspark", {"markov_rank": 0}, "markov_rank=0"),
        ("dspark", {"markov_rank": None}, "without markov_rank"),
    ],
)
def test_bad_configs_are_refused(kind: str, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        BlockDraftSpec.from_config(config_of(kind, **changes))
