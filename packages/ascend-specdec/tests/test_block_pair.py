"""A draft that does not belong to its target, or cannot be served beside it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from ascend_ops_core.errors import InvalidInputError
from ascend_specdec.qwen3_blocks.config import BlockDraftSpec, ConvolutionSpec, SelectorSpec
from ascend_specdec.qwen3_blocks.validation import check_pair
from ascend_specdec.vllm.block_hooks import is_block_draft, take_block_drafts

SPEC = BlockDraftSpec(64, 300, 300, (0, 2), 64, 2, False, (None,), (False,))


def engine(layers: int = 4, drafts: int = 3, mrope: bool = False, stages: int = 1) -> Any:
    return SimpleNamespace(
        model_config=SimpleNamespace(
            hf_text_config=SimpleNamespace(num_hidden_layers=layers),
            get_hidden_size=lambda: 64,
            get_vocab_size=lambda: 300,
            uses_mrope=mrope,
        ),
        num_speculative_tokens=drafts,
        parallel_config=SimpleNamespace(pipeline_parallel_size=stages),
    )


def test_a_pair_is_accepted() -> None:
    check_pair(SPEC, engine())


@pytest.mark.parametrize(
    ("spec", "settings", "named"),
    [
        (replace(SPEC, target_layers=(0, 4)), {}, r"target_layer_ids=\[0, 4\]"),
        (replace(SPEC, target_hidden_size=65), {}, "width 65"),
        (replace(SPEC, vocab_size=299), {}, "vocab_size=299"),
        (replace(SPEC, draft_vocab_size=301), {}, "draft_vocab_size=301"),
        (replace(SPEC, draft_vocab_size=9, selector=SelectorSpec(2, 2)), {}, "code books"),
        (replace(SPEC, convolution=ConvolutionSpec(5, 8)), {}, "Draft at least 4 tokens"),
        (SPEC, {"mrope": True}, "M-RoPE"),
        (SPEC, {"stages": 2}, "pipeline_parallel_size=2"),
    ],
)
def test_what_does_not_belong_together_is_refused(
    spec: BlockDraftSpec, settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidInputError, match=named):
        check_pair(spec, engine(**settings))


def test_block_drafts_run_on_the_runner_v1(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.config import SpeculativeConfig, VllmConfig

    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    take_block_drafts()
    take_block_drafts()
    for method in ("dflash", "dspark"):
        given: Any = SimpleNamespace(speculative_config=SimpleNamespace(method=method))
        assert is_block_draft(given)
        assert VllmConfig.use_v2_model_runner.fget(given) is False
        assert SpeculativeConfig.use_dflash(given.speculative_config)
        # The runner and the scheduler then reserve one slot more than there are drafts.
        assert not SpeculativeConfig.use_dspark(given.speculative_config)
    assert not SpeculativeConfig.use_dflash(SimpleNamespace(method="mtp"))
    assert not is_block_draft(SimpleNamespace(speculative_config=None))


class Known:
    """A config of transformers with DSpark's keys."""

    def __init__(self, **keys: Any) -> None:
        self.model_type, self.architectures = "deepseek_v4", ["DeepseekV4ForCausalLM"]
        self.update(keys)

    def update(self, keys: dict[str, Any]) -> None:
        vars(self).update(keys)


def test_vllm_does_not_learn_how_long_a_block_is() -> None:
    import pickle

    from vllm.config import SpeculativeConfig

    for _ in range(2):
        take_block_drafts()
    override = SpeculativeConfig.compose_draft_hf_overrides(None)
    assert pickle.loads(pickle.dumps(override)) is override
    found = override(Known(dspark_block_size=5, dspark_target_layer_ids=[1]))
    assert (found.dspark_block_size, found.trained_dspark_block_size) == (None, 5)
    assert found.architectures == ["DeepSeekV4MTPModel"], "vLLM's own override is heeded"
    for other in (Known(dspark_target_layer_ids=[1]), Known(dspark_block_size=5)):
        assert not hasattr(override(other), "trained_dspark_block_size")
    assert other.dspark_block_size == 5


@pytest.mark.parametrize(
    ("drafts", "block", "reserved"), [(1, 5, 6), (5, 5, 6), (7, 5, 8), (3, None, 4)]
)
def test_slots_are_reserved_for_whole_blocks(
    monkeypatch: pytest.MonkeyPatch, drafts: int, block: int | None, reserved: int
) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    def reserve(self: Any, vllm_config: Any) -> None:
        self.num_lookahead_tokens = drafts + 1

    monkeypatch.setattr(Scheduler, "__init__", reserve)
    for _ in range(2):
        take_block_drafts()
    draft = SimpleNamespace(trained_dspark_block_size=block)
    given = SimpleNamespace(method="dspark", draft_model_config=SimpleNamespace(hf_config=draft))
    made: Any = Scheduler(SimpleNamespace(speculative_config=given))  # type: ignore[arg-type]
    assert made.num_lookahead_tokens == reserved
    made = Scheduler(SimpleNamespace(speculative_config=None))  # type: ignore[arg-type]
    assert made.num_lookahead_tokens == drafts + 1


def test_upstream_still_refuses_fewer_drafts_than_a_block_has() -> None:
    """Otherwise nothing has to be hidden from it."""
    import inspect

    from vllm.config import speculative

    assert "self.num_speculative_tokens < dspark_block_size" in inspect.getsource(speculative)


def test_upstream_still_sends_dspark_to_its_second_runner() -> None:
    """Otherwise the hook is not needed any more."""
    import inspect

    from vllm.config import vllm as module

    assert 'self.speculative_config.method == "dspark"' in inspect.getsource(module)
