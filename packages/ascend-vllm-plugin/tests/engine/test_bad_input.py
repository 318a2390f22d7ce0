"""Checkpoints and settings that cannot work: the error names the value, the limit, the remedy."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_models_deepseek.testing import random_prompt
from safetensors.torch import load_file, save_file

from .harness import Checkpoints, Engine, EnginePool, Request, assert_all_match

pytestmark = pytest.mark.engine

SPEC = "mixed"
Refusal = Callable[..., str]
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def broken(checkpoints: Checkpoints, tmp_path: Path) -> Callable[..., Path]:
    """Write a copy of the checkpoint with some config keys and tensors changed."""

    def write(config: dict[str, Any] | None = None, tensors: Tensors | None = None) -> Path:
        source = checkpoints.folder(SPEC)
        keys = json.loads((source / "config.json").read_text()) | (config or {})
        (tmp_path / "config.json").write_text(json.dumps(keys))
        stored = tensors if tensors is not None else load_file(source / "model.safetensors")
        save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
        return tmp_path

    return write


@pytest.fixture
def refusal(engines: EnginePool) -> Refusal:
    """Start an engine that must not start; return the whole chain of error texts."""

    def start(folder: Path, **settings: Any) -> str:
        from vllm.distributed import cleanup_dist_env_and_memory

        engines.close()
        try:
            with pytest.raises(Exception) as caught:  # noqa: PT011 - the caller checks the text
                Engine(folder, **settings)
        finally:
            cleanup_dist_env_and_memory()
        texts: list[str] = []
        error: BaseException | None = caught.value
        while error is not None:
            texts.append(str(error))
            error = error.__cause__ or error.__context__
        return "\n".join(texts)

    return start


def test_all_tensor_problems_at_once(
    checkpoints: Checkpoints, broken: Callable[..., Path], refusal: Refusal
) -> None:
    tensors = load_file(checkpoints.folder(SPEC) / "model.safetensors")
    tensors["layers.1.attn.wkw.weight"] = tensors.pop("layers.1.attn.wkv.weight")
    del tensors["layers.3.ffn.experts.2.w1.weight"]
    del tensors["layers.2.attn.indexer.compressor.ape"]
    tensors["layers.7.attn_norm.weight"] = torch.ones(128)
    tensors["layers.2.attn.wo_b.weight"] = torch.zeros(128, 63)
    tensors["head.weight"] = torch.zeros(511, 128)
    text = refusal(broken(tensors=tensors))
    for name in (
        "layers.1.attn.wkv.weight",
        "layers.1.attn.wkw.weight",
        "layers.3.ffn.experts.2.w1.weight",
        "layers.2.attn.indexer.compressor.ape",
        "layers.7.attn_norm.weight",
    ):
        assert name in text
    missing = next(line for line in text.splitlines() if "missing layers.1.attn.wkv" in line)
    assert "wkw" in missing, "the close name is not offered"
    for name, found, expected in (
        ("layers.2.attn.wo_b.weight", "[128, 63]", "[128, 64]"),
        ("head.weight", "[511, 128]", "[512, 128]"),
    ):
        line = next(line for line in text.splitlines() if f"shape of {name}" in line)
        assert found in line
        assert expected in line


def test_draft_tensor_missing(
    checkpoints: Checkpoints, broken: Callable[..., Path], refusal: Refusal
) -> None:
    tensors = load_file(checkpoints.folder(SPEC) / "model.safetensors")
    del tensors["mtp.0.e_proj.weight"]
    speculative = {"method": "mtp", "num_speculative_tokens": 1}
    text = refusal(broken(tensors=tensors), speculative_config=speculative)
    assert "missing mtp.0.e_proj.weight" in text


def test_speculation_without_a_draft_layer(checkpoints: Checkpoints, refusal: Refusal) -> None:
    speculative = {"method": "mtp", "num_speculative_tokens": 1}
    text = refusal(checkpoints.folder("wide_window"), speculative_config=speculative)
    assert "num_nextn_predict_layers" in text
    assert "speculative" in text


def test_unknown_quantization(broken: Callable[..., Path], refusal: Refusal) -> None:
    text = refusal(broken(config={"quantization_config": {"quant_method": "mxfp44"}}))
    assert "quant_method='mxfp44'" in text
    assert "known are fp8" in text
    assert "closest: mxfp8" in text


def test_quantized_config_of_plain_tensors(broken: Callable[..., Path], refusal: Refusal) -> None:
    fp8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    text = refusal(broken(config={"quantization_config": fp8, "expert_dtype": "fp8"}))
    assert "missing layers.0.attn.wq_a.scale [1, 1]" in text


def test_quantized_tensors_without_a_config(
    checkpoints: Checkpoints, broken: Callable[..., Path], refusal: Refusal
) -> None:
    tensors = load_file(checkpoints.folder(SPEC) / "model.safetensors")
    name = "layers.0.attn.wq_a.weight"
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    tensors["layers.0.attn.wq_a.scale"] = torch.ones(1, 1)
    text = refusal(broken(tensors=tensors))
    assert name in text
    assert "float8_e4m3fn" in text
    assert "layers.0.attn.wq_a.scale" in text


def test_unsupported_compress_ratio(broken: Callable[..., Path], refusal: Refusal) -> None:
    text = refusal(broken(config={"compress_ratios": [0, 128, 8, 128, 4, 0]}))
    assert "8" in text
    assert re.search(r"0.*4.*128", text)
    assert "ratio" in text


def test_unequal_layer_count(broken: Callable[..., Path], refusal: Refusal) -> None:
    text = refusal(broken(config={"compress_ratios": [0, 128, 4]}))
    assert "compress_ratios" in text
    assert "3" in text
    assert "6" in text


def test_longer_than_the_rope_table(
    checkpoints: Checkpoints, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM refuses it; told to allow it, the model itself must (bug case 10)."""
    folder = checkpoints.folder(SPEC)
    text = refusal(folder, max_model_len=8192)
    assert "8192" in text
    assert "4096" in text
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    text = refusal(folder, max_model_len=8192, max_num_batched_tokens=8192)
    assert "8192" in text
    assert "4096" in text
    assert "max_model_len" in text or "max-model-len" in text


def test_cache_too_small_for_one_request(checkpoints: Checkpoints, refusal: Refusal) -> None:
    text = refusal(checkpoints.folder(SPEC), kv_cache_memory_bytes=1 << 17)
    assert "1024" in text, "the length that does not fit is not named"
    amounts = re.findall(r"([\d.]+)\s*(?:GiB|MiB|KiB|bytes)", text)
    assert any(float(amount) > 0 for amount in amounts), "how much is needed is not said"
    assert "kv_cache_memory" in text or "max_model_len" in text


@pytest.mark.parametrize(
    ("keys", "size", "value"),
    [
        ({}, 3, "8"),
        ({"o_groups": 1, "o_lora_rank": 31}, 2, "31"),
        ({"moe_intermediate_size": 63}, 2, "63"),
    ],
    ids=["heads", "low_rank", "expert_channels"],
)
def test_tensor_parallel_size_that_does_not_divide(
    broken: Callable[..., Path],
    in_process: None,
    keys: dict[str, Any],
    size: int,
    value: str,
) -> None:
    """Refused while the configuration is read, before any process is started."""
    from vllm import EngineArgs

    arguments = EngineArgs(
        model=str(broken(config=keys)),
        skip_tokenizer_init=True,
        dtype="float32",
        tensor_parallel_size=size,
        distributed_executor_backend="mp",
    )
    with pytest.raises(Exception, match=rf"(?s)(?=.*\b{value}\b)(?=.*\b{size}\b)"):
        arguments.create_engine_config()


@pytest.mark.parametrize(
    ("additional", "message"),
    [
        ({"o_proj": "fp8"}, r"o_proj='fp8' on cpu.*it exists on A5.*Use plain"),
        ({"o_proj_tensor_parallel_size": 2}, r"must divide data_parallel_size=1"),
    ],
    ids=["device", "replicas"],
)
def test_an_output_projection_that_is_not_there(
    broken: Callable[..., Path], in_process: None, additional: dict[str, Any], message: str
) -> None:
    from vllm import EngineArgs

    arguments = EngineArgs(
        model=str(broken(config={})),
        skip_tokenizer_init=True,
        dtype="float32",
        additional_config=additional,
    )
    with pytest.raises(Exception, match=message):
        arguments.create_engine_config()


def test_a_good_checkpoint_still_starts(engines: EnginePool, checkpoints: Checkpoints) -> None:
    """Nothing of a refused start stays behind in the process."""
    engine = engines.get(SPEC)
    request = Request(random_prompt(130, 512, seed=1), 4)
    assert_all_match(checkpoints.oracle(SPEC), [request], engine.run([request]))
