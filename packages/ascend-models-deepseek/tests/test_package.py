"""What importing ascend_models_deepseek promises, with and without vLLM."""

from __future__ import annotations

import tomllib
from pathlib import Path

import ascend_models_deepseek
import pytest
from ascend_ops_core.testing import run_python


def test_public_names() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert ascend_models_deepseek.__version__ == project["version"]
    assert ascend_models_deepseek.__all__ == ["__version__"]


def test_config_weights_and_oracle_need_no_vllm() -> None:
    code = """
        import sys
        import ascend_models_deepseek
        from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
        from ascend_models_deepseek.deepseek_v4.sharding import Shard
        from ascend_models_deepseek.deepseek_v4.weights import main_table
        from ascend_models_deepseek.testing import SPECS
        spec = DeepseekV4Spec.from_config(SPECS["mixed"].original_config())
        table = main_table(spec, Shard.of(spec, 1, 0, (0, spec.vocab_size)))
        print(len(table.rules) > 100, {"vllm", "numba"} & sys.modules.keys())
    """
    assert run_python(code, missing=["vllm", "numba"]) == "True set()"


def test_registering_without_vllm_names_the_extra() -> None:
    code = "from ascend_models_deepseek.vllm import register; register()"
    with pytest.raises(AssertionError, match=r"ascend-models-deepseek\[cpu\]"):
        run_python(code, missing=["vllm"])


def test_registering_twice_is_harmless_and_importing_nothing() -> None:
    from ascend_models_deepseek.deepseek_v4.hf_config import AscendDeepseekV4Config
    from ascend_models_deepseek.vllm import register
    from vllm.model_executor.models import ModelRegistry
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    register()
    register()
    assert _CONFIG_REGISTRY["deepseek_v4"] is AscendDeepseekV4Config
    for architecture, name in (
        ("DeepseekV4ForCausalLM", "AscendDeepseekV4ForCausalLM"),
        ("DeepSeekV4MTPModel", "DeepSeekV4MTP"),
        ("DSparkDraftModel", "DSparkDeepseekV4ForCausalLM"),
    ):
        lazy = ModelRegistry.models[architecture]
        assert lazy.module_name == "ascend_models_deepseek.registry"
        assert lazy.class_name == name
