"""The warning about drafts that are hardly ever right."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from ascend_ops_core.errors import InvalidInputError
from ascend_specdec.vllm import acceptance


def config(method: str, **given: Any) -> Any:
    return SimpleNamespace(
        speculative_config=SimpleNamespace(method=method), additional_config=given
    )


def test_the_floor_is_that_of_the_settings() -> None:
    key = acceptance.KEY
    assert acceptance.floor_of(config("eagle3")) == acceptance.DEFAULT_FLOOR
    assert acceptance.floor_of(config("ngram")) == acceptance.floor_of(config("suffix")) == 0
    assert acceptance.floor_of(config("ngram", **{key: 0.5})) == 0.5
    assert acceptance.floor_of(config("mtp", **{key: 0})) == 0
    for wrong in (-0.1, 1.1, "0.5", True):
        with pytest.raises(InvalidInputError, match=key):
            acceptance.floor_of(config("mtp", **{key: wrong}))


def test_a_fall_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance, "_floor", 0.3)
    watch = acceptance.AcceptanceWatch()

    def warnings(drafts: int, right: int) -> int:
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger=acceptance.__name__):
            for _ in range(4):
                watch.observe(drafts // 4, [right // 4, 0, 0])
        return len(caplog.records)

    assert warnings(400, 200) == 0
    assert warnings(400, 80) == 1
    assert "20.0 %" in caplog.text
    assert "QuaRot" in caplog.text
    assert warnings(400, 80) == 0
    assert warnings(400, 160) == 0
    assert warnings(400, 80) == 1


def test_few_drafts_are_not_judged(caplog: pytest.LogCaptureFixture) -> None:
    watch = acceptance.AcceptanceWatch()
    watch.observe(acceptance.LEAST_DRAFTS - 1, [0])
    watch.observe(0, [])
    assert not caplog.records


@pytest.mark.engine
def test_vllm_s_own_logging_warns(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.spec_decode.metrics import SpecDecodingLogging, SpecDecodingStats

    monkeypatch.setattr(acceptance, "_floor", 0.3)
    for _ in range(2):
        acceptance.watch_acceptance()
    log = SpecDecodingLogging()
    stats = SpecDecodingStats.new(2)
    for _ in range(acceptance.LEAST_DRAFTS):
        stats.observe_draft(2, 0)
    with caplog.at_level(logging.WARNING, logger=acceptance.__name__):
        log.observe(stats)
    assert len(caplog.records) == 1
    assert log.num_drafts == [acceptance.LEAST_DRAFTS]
