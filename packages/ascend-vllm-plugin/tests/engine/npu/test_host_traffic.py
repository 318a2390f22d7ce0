"""What a decode step of ours moves between host and device: nothing to the host, no waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from ascend_models_deepseek.testing import random_prompt
from ascend_ops_core.testing.simulated_npu import Counters, counters

from ..harness import Checkpoints, EnginePool, Request, assert_all_match

pytestmark = pytest.mark.engine_npu

SPEC = "mixed"
VOCAB = 512


class Meter:
    """Sums what some functions move, in steps of few tokens for each request.

    Attributes:
        spent: sums by the name of the part.
        calls: calls by the name of the part.
    """

    def __init__(self, patch: pytest.MonkeyPatch, most_tokens: int) -> None:
        self.patch = patch
        self.most_tokens = most_tokens
        self.decoding = False
        self.spent: dict[str, Counters] = {}
        self.calls: dict[str, int] = {}

    def watch(self, part: str, owner: Any, name: str) -> None:
        """Measure ``owner.name`` as ``part``; a metadata builder also tells the kind of step."""
        original: Callable[..., Any] = getattr(owner, name)

        def measured(*args: Any, **kwargs: Any) -> Any:
            if part == "metadata":
                common = kwargs.get("common_attn_metadata") or args[2]
                self.decoding = common.max_query_len <= self.most_tokens
            with self._measuring(part):
                return original(*args, **kwargs)

        self.patch.setattr(owner, name, measured)

    @contextmanager
    def _measuring(self, part: str) -> Iterator[None]:
        before = counters()
        yield
        if self.decoding:
            done, so_far = counters() - before, self.spent.get(part, Counters())
            self.spent[part] = so_far - (Counters() - done)
            self.calls[part] = self.calls.get(part, 0) + 1


@pytest.mark.parametrize(
    ("width", "cache_dtype"),
    [(0, "model"), (2, "model"), (0, "family")],
    ids=["plain", "mtp2", "int8 keys"],
)
def test_a_decode_step_fetches_nothing_and_waits_for_nothing(
    engines: EnginePool,
    checkpoints: Checkpoints,
    width: int,
    cache_dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speculation = {"method": "mtp", "num_speculative_tokens": width}
    settings: dict[str, Any] = {"speculative_config": speculation} if width else {}
    settings["additional_config"] = {"cache_dtype": cache_dtype}
    engine = engines.get(SPEC, **settings)
    from ascend_attention.vllm.dsa import AscendDSAMetadataBuilder
    from ascend_models_deepseek.deepseek_v4.model import AscendDeepseekV4ForCausalLM
    from ascend_models_deepseek.deepseek_v4.mtp import DeepSeekV4MTP

    meter = Meter(monkeypatch, 1 + width)
    meter.watch("metadata", AscendDSAMetadataBuilder, "build")
    meter.watch("model", AscendDeepseekV4ForCausalLM, "forward")
    meter.watch("draft", DeepSeekV4MTP, "forward")
    requests = [Request(random_prompt(n, VOCAB, seed=n), 10) for n in (1, 40, 150)]
    results = engine.run(requests)
    if cache_dtype == "model":
        assert_all_match(checkpoints.oracle(SPEC), requests, results)
    assert meter.calls["model"] >= 3
    assert meter.calls["metadata"] >= 5 * meter.calls["model"]
    ours = meter.spent["model"] - (Counters() - meter.spent.get("draft", Counters()))
    for spent in (ours, meter.spent["metadata"]):
        assert spent.device_to_host == 0
        assert spent.synchronisations == 0
    # Metadata is made where layers ask for it: the layout and each compressed cache's closed
    # entries, once per step and kind of cache.
    assert meter.spent["metadata"].host_to_device == 0
    assert ours.host_to_device <= meter.calls["metadata"]
