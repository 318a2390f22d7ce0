"""AscendConfig: known switches, close matches for unknown ones, and what they do."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from ascend_ops_core import InvalidInputError
from ascend_ops_core.devices import chosen_family, use_family
from ascend_vllm_plugin.npu.config import AscendConfig


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what a config sets for the process."""
    monkeypatch.setenv("ASCEND_OPS", "rms_norm=torch_npu,swiglu=triton")
    yield
    use_family(None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"device_famliy": "A3"}, r"'device_famliy'.*Did you mean device_family\?"),
        ({"operator": {}}, r"'operator'.*Did you mean operators\b"),
        ({"enable_everything": True}, r"known are device_family, operators, o_proj, .*Remove it"),
        ({"device_family": "A9"}, r"device_family='A9'.*known are A2, A3, A5, 310P"),
        ({"device_family": 3}, r"device_family=3.*valid string"),
        ({"o_proj": "opt"}, r"o_proj='opt'.*known are auto, plain, otp, olora_tp, fp8"),
        ({"o_proj_tensor_parallel_size": 0}, r"o_proj_tensor_parallel_size=0.*equal to 1"),
        ({"o_proj_tensor_parallel_size": "2"}, r"_size='2'.*valid integer"),
        ({"o_proj_tensor_parallel": 2}, r"Did you mean o_proj_tensor_parallel_size"),
        ({"cache_dtype": "int8"}, r"cache_dtype='int8'.*'family' or 'model'"),
        ({"operators": {"rms_norm": 1}}, r"operators\.rms_norm=1.*valid string"),
    ],
)
def test_what_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        AscendConfig.parse(given)
    assert re.search(message, str(caught.value)), caught.value


@pytest.mark.usefixtures("process")
def test_defaults_change_nothing() -> None:
    before = os.environ["ASCEND_OPS"]
    AscendConfig.of(SimpleNamespace(additional_config={})).apply()  # type: ignore[arg-type]
    assert chosen_family() is None
    assert os.environ["ASCEND_OPS"] == before


@pytest.mark.usefixtures("process")
def test_switches_hold_for_the_process_and_may_be_applied_again() -> None:
    from ascend_ops_core.selection import forced_implementation

    config = AscendConfig.parse({"device_family": "A5", "operators": {"rms_norm": "triton"}})
    for _ in range(2):
        config.apply()
    assert chosen_family() == "A5"
    assert forced_implementation("rms_norm", ("torch_npu", "triton")) == "triton"
    assert forced_implementation("swiglu", ("triton",)) == "triton"
    assert os.environ["ASCEND_OPS"].count("rms_norm=triton") == 1


def test_every_switch_is_documented() -> None:
    for name in AscendConfig.model_fields:
        assert f"        {name}: " in (AscendConfig.__doc__ or "")
