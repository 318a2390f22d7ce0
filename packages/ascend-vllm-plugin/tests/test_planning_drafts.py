"""`plan` counts Llama, Qwen3, and every way of drafting for them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_models_deepseek.testing.original_names import is_control_tensor
from ascend_models_deepseek.testing.quantized_v4 import quantise_checkpoint
from ascend_models_kimi.testing import (
    K3_SPECS,
    TinyK3DSparkSpec,
    write_k3_checkpoint,
    write_k3_dspark,
)
from ascend_ops_core.checkpoint.headers import read_headers
from ascend_ops_core.errors import InvalidInputError
from ascend_vllm_plugin.cli.app import app
from ascend_vllm_plugin.planning.checkpoint import check_checkpoint
from ascend_vllm_plugin.planning.drafts import (
    DraftTarget,
    PlannedDraft,
    Speculation,
    plan_draft,
)
from ascend_vllm_plugin.planning.estimates import Step
from ascend_vllm_plugin.planning.plan import make_plan
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.source import read_model
from ascend_vllm_plugin.planning.weights import Layout, WeightFormat
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

CHECKPOINTS = Path(__file__).parents[3] / "tools/tiny_model/checkpoints"
DATA = Path(__file__).parent / "data"
DEMO = Path(__file__).parents[1] / "src/ascend_vllm_plugin/data/tiny-deepseek-v4"
LLAMA, QWEN3 = CHECKPOINTS / "llama", CHECKPOINTS / "qwen3"
HIDDEN, VOCABULARY, DRAFTED = 128, 1024, 640
DRAFTS = {
    "eagle3": ("llama-eagle3", 3),
    "medusa": ("llama-medusa", 4),
    "dflash": ("qwen3-dflash2", 7),
    "dspark": ("qwen3-dspark", 7),
}
WIDER = {"architectures": ["LlamaForCausalLMVwnEagle3"], "vwn_m": 4, "vwn_r": 1.5}
TARGET = DraftTarget(HIDDEN, VOCABULARY, 512, torch.bfloat16)


def drafted(method: str, model: Path | None = None, **target: Any) -> PlannedDraft:
    name, tokens = DRAFTS.get(method, ("", 5))
    way = Speculation(method, tokens, model or (CHECKPOINTS / name if name else None))
    given = {**vars(TARGET), **target}
    return plan_draft(way, DraftTarget(**given), Step(256, 8, tokens))


def plan(folder: Path, method: str | None = None, **request: Any) -> Any:
    if method is not None:
        name, tokens = DRAFTS.get(method, ("", 5))
        way = Speculation(method, tokens, CHECKPOINTS / name if name else None)
        request = {"draft": way, "speculative_tokens": tokens} | request
    given = {"memory_bytes": 1 << 30, "max_model_len": 512} | request
    return make_plan(read_model(folder), PlanRequest(given.pop("device", "cpu"), **given))


def stored(folder: Path, *left_out: str) -> int:
    """Bytes of a checkpoint's files."""
    return sum(
        torch.Size(shape).numel() * dtype.itemsize
        for name, (shape, dtype) in read_headers(folder).items()
        if name not in left_out
    )


@pytest.mark.parametrize("folder", [LLAMA, QWEN3], ids=lambda one: one.name)
def test_a_dense_model_takes_the_bytes_of_its_files(folder: Path) -> None:
    assert check_checkpoint(folder).problems == []
    made = plan(folder)
    assert sum(made.weights.values()) == stored(folder)
    keys = 2 * 2 * 32  # keys and values of two heads
    assert made.pool.stride == 6 * 128 * keys * 2
    assert made.rotary_bytes == 2048 * 32 * 2


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_share_a_dense_model(ranks: int) -> None:
    """Heads, channels and vocabulary; key-value heads are two, so that four ranks have one each."""
    made = plan(LLAMA, layout=Layout(tensor=ranks))
    layer = (4 * 32 * HIDDEN * 2 + 3 * HIDDEN * 256) // ranks
    layer += 2 * max(1, 2 // ranks) * 32 * HIDDEN + 2 * HIDDEN
    values = 6 * layer + 2 * VOCABULARY // ranks * HIDDEN + HIDDEN
    assert sum(made.weights.values()) == 2 * values
    assert made.pool.stride == 6 * 128 * 2 * max(1, 2 // ranks) * 32 * 2


@pytest.mark.parametrize("method", DRAFTS)
def test_a_draft_takes_the_bytes_of_its_files(method: str) -> None:
    """But for DSpark's confidence head, which is held in float32."""
    folder = CHECKPOINTS / DRAFTS[method][0]
    head = [one for one in read_headers(folder) if one.startswith("confidence_head")]
    confidence = 4 * (HIDDEN + 32 + 1) if head else 0
    assert drafted(method).weights == stored(folder, *head) + confidence


def test_a_config_alone_is_counted_with_embedding_and_head(tmp_path: Path) -> None:
    for method in ("eagle3", "dspark"):
        (tmp_path / "config.json").write_text(
            (CHECKPOINTS / DRAFTS[method][0] / "config.json").read_text()
        )
        more = drafted(method, tmp_path / "config.json").weights - drafted(method).weights
        # The trained Eagle3 draft has a head of its own.
        assert more == 2 * HIDDEN * VOCABULARY * (1 if method == "eagle3" else 2)


def test_ranks_share_the_layers_of_a_draft() -> None:
    whole, half = drafted("eagle3").weights, drafted("eagle3", ranks=2).weights
    replicated = 2 * (3 * HIDDEN * HIDDEN + 4 * HIDDEN) + 8 * DRAFTED
    assert whole - half == (whole - replicated) // 2
    whole, half = drafted("medusa").weights, drafted("medusa", ranks=2).weights
    assert whole - half == 2 * 4 * VOCABULARY * HIDDEN // 2


@pytest.mark.parametrize(("method", "layers"), [("eagle3", 1), ("dflash", 2), ("dspark", 2)])
def test_layers_of_a_draft_have_caches(method: str, layers: int) -> None:
    folder = LLAMA if method == "eagle3" else QWEN3
    with_draft, without = plan(folder, method), plan(folder)
    assert with_draft.pool.stride * 6 == without.pool.stride * (6 + layers)
    # vLLM leaves out the last block of a hit where a draft reads hidden states.
    assert with_draft.pool.smallest_shared_prefix == 2 * without.pool.smallest_shared_prefix
    assert with_draft.drafting.bytes > 0 == without.drafting.bytes
    assert with_draft.fixed_bytes > without.fixed_bytes


def test_a_draft_with_a_wider_residual_takes_the_bytes_of_its_parameters(tmp_path: Path) -> None:
    from ascend_specdec.layers.wider_residual import WiderResidualLayer

    layer = WiderResidualLayer(HIDDEN, 192, 4, 1e-5, torch.nn.Identity(), torch.nn.Identity())
    wider = sum(one.numel() for one in layer.parameters())
    narrow = drafted("eagle3", changed(CHECKPOINTS / "llama-eagle3", tmp_path)).weights
    found = drafted("eagle3", changed(CHECKPOINTS / "llama-eagle3", tmp_path, **WIDER)).weights
    # A plain layer has three norms, and attention that reads twice the width.
    keys = 4 * 32 + 2 * 2 * 32
    assert found - narrow == 2 * (wider - 3 * HIDDEN - keys * HIDDEN)


def test_methods_without_a_model() -> None:
    for method in ("ngram", "suffix"):
        made = drafted(method)
        assert (made.weights, made.buffers.bytes, made.caches, made.eagle) == (0, 0, (), False)
        assert made.step.bytes == 8 * 5 * VOCABULARY * 4
    assert drafted("ngram_gpu").buffers.bytes == 8 * (512 + 1) * 4
    assert plan(LLAMA, "ngram").pool.smallest_shared_prefix == 128


def test_drafts_of_other_models_than_dense_ones() -> None:
    """Medusa's heads are counted for any target; a draft that reads streams needs them."""
    source = read_model(DATA / "kimi_linear.json")
    text = Speculation("ngram", 3)
    request = PlanRequest(
        "A3", max_model_len=4096, speculative_tokens=3, draft=text, memory_bytes=1 << 40
    )
    made = make_plan(source, request)
    # One state more for every drafted token.
    assert {use.states for use in made.caches} == {None, 4}
    way = Speculation("eagle3", 3, CHECKPOINTS / "llama-eagle3")
    request = PlanRequest("A3", max_model_len=4096, speculative_tokens=3, draft=way)
    with pytest.raises(InvalidInputError, match="LlamaForCausalLMEagle3 for Kimi"):
        make_plan(source, request)
    with pytest.raises(InvalidInputError, match="planned for Llama, Qwen3"):
        make_plan(read_model(DATA / "deepseek_v3.json"), request)


def changed(folder: Path, path: Path, **fields: Any) -> Path:
    config = json.loads((folder / "config.json").read_text()) | fields
    file = path / "config.json"
    file.write_text(json.dumps({name: v for name, v in config.items() if v is not None}))
    return file


@pytest.mark.parametrize(
    ("method", "fields", "message"),
    [
        ("eagle3", {"architectures": ["Eagle3MistralForCausalLM"]}, "planned are LlamaForC"),
        ("eagle3", {**WIDER, "vwn_m": 5}, "vwn_m divides the widths 128 and 192"),
        ("eagle3", {**WIDER, "num_hidden_layers": 2}, "it has one layer"),
        ("eagle3", {"vocab_size": 1000}, "the target has 128 and 1024"),
        ("eagle3", {"intermediate_size": None}, "without intermediate_size"),
        ("eagle3", {"quantization_config": {"quant_method": "fp8"}}, "the unquantised draft"),
        ("medusa", {"num_heads": 3}, "Use 3"),
        ("dflash", {"target_layer_ids": None, "dflash_config": None}, "without target_layer_ids"),
        ("dspark", {"markov_rank": None}, "without markov_rank"),
    ],
)
def test_a_draft_that_cannot_be_planned(
    tmp_path: Path, method: str, fields: dict[str, Any], message: str
) -> None:
    file = changed(CHECKPOINTS / DRAFTS[method][0], tmp_path, **fields)
    with pytest.raises(InvalidInputError, match=message):
        drafted(method, file)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_attention_heads": None}, "num_attention_heads=None"),
        ({"use_sliding_window": True}, "layers slide"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised qwen3"),
    ],
)
def test_a_dense_model_that_cannot_be_planned(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        read_model(changed(QWEN3, tmp_path, **fields))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"layout": Layout(tensor=3)}, "tp=3"),
        ({"layout": Layout(tensor=2, expert=2)}, "no routed experts"),
        ({"layout": Layout(tensor=2, context=2)}, "ranks share the heads"),
        ({"weight_format": WeightFormat.W8A8.value}, "in the model's dtype"),
        ({"device": "A3", "block_size": 64}, "a multiple of 128"),
        ({"speculative_tokens": 1}, "--speculative-config"),
    ],
)
def test_a_request_that_a_dense_model_refuses(request_: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        plan(LLAMA, **request_)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Write"),
        ('{"method": "ngram"}', "method and num_speculative_tokens"),
        ('{"method": "eagle3", "num_speculative_tokens": 2}', "Name the draft's directory"),
        ('{"method": "ngram", "num_speculative_tokens": 2, "model": "x"}', "Leave 'model' out"),
        ('{"method": "draft_model", "num_speculative_tokens": 2}', "planned are mtp, ngram"),
        ('{"method": "ngram", "num_speculative_tokens": 0}', "at least 1"),
        ('{"method": "ngram", "num_speculative_tokens": "2"}', "it is a number"),
        ('{"method": "eagle3", "num_speculative_tokens": 2, "model": "none"}', "no config.json"),
    ],
)
def test_a_speculative_config_that_makes_no_sense(text: str, message: str) -> None:
    result = command("--speculative-config", text)
    assert result.exit_code == 2
    assert message in result.stderr.replace("\n", " ")


def command(*arguments: str) -> Any:
    fixed = ["plan", "--model", str(LLAMA), "--device", "A3", "--max-model-len", "512"]
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [*fixed, *arguments])


def test_the_command_counts_a_draft() -> None:
    config = {
        "method": "eagle3",
        "num_speculative_tokens": 3,
        "model": str(CHECKPOINTS / "llama-eagle3"),
        "draft_sample_method": "probabilistic",
    }
    result = command("--speculative-config", json.dumps(config), "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["request"]["speculative_method"] == "eagle3"
    sizes = {one["name"]: one["bytes"] for one in said["card"]["segments"]}
    assert sizes["draft"] == drafted("eagle3").weights
    assert sizes["drafting"] > 0
    assert [use["layers"] for use in said["caches"]] == [7]
    both = command("--speculative-config", json.dumps(config), "-k", "1")
    assert both.exit_code == 2
    assert "Give one of them" in both.stderr


@pytest.mark.parametrize("method", DRAFTS)
def test_a_draft_s_checkpoint_is_checked(method: str, tmp_path: Path) -> None:
    name, tokens = DRAFTS[method]
    target = CHECKPOINTS / name.split("-")[0]
    assert check_checkpoint(target, Speculation(method, tokens, CHECKPOINTS / name)).problems == []
    changed(CHECKPOINTS / name, tmp_path)
    (problem,) = check_checkpoint(target, Speculation(method, tokens, tmp_path)).problems
    assert "no *.safetensors file" in problem
    tensors = load_file(CHECKPOINTS / name / "model.safetensors")
    largest = max(tensors, key=lambda one: tensors[one].numel())
    tensors[largest] = tensors[largest][:-1].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    (problem,) = check_checkpoint(target, Speculation(method, tokens, tmp_path)).problems
    assert "its config.json wants" in problem


def test_kimi_k3_s_draft_is_counted_and_checked(tmp_path: Path) -> None:
    spec = TinyK3DSparkSpec(K3_SPECS["k3"])
    target = write_k3_checkpoint(K3_SPECS["k3"], tmp_path / "target")
    way = Speculation("dspark", 4, write_k3_dspark(spec, tmp_path / "draft"))
    assert check_checkpoint(target, way).problems == []
    request = {"draft": way, "speculative_tokens": 4, "dtype": "float32"}
    made, without = plan(target, **request), plan(target, dtype="float32")
    assert made.weights["draft"] == stored(tmp_path / "draft")
    latents = sum(use.layers for use in made.caches if use.states is None)
    assert latents == sum(use.layers for use in without.caches if use.states is None) + 2
    half = plan(target, layout=Layout(tensor=2), **request).weights["draft"]
    assert made.weights["draft"] / 2 < half < made.weights["draft"]
    write_k3_dspark(replace(spec, intermediate_size=96), tmp_path / "other")
    (tmp_path / "draft" / "config.json").write_text(
        (tmp_path / "other" / "config.json").read_text()
    )
    assert len(check_checkpoint(target, way).problems) == 6
    (problem,) = check_checkpoint(
        target, Speculation("dspark", 4, CHECKPOINTS / "qwen3-dspark")
    ).problems
    assert "for Kimi" in problem


def joined(target: Path, folder: Path) -> Path:
    """DeepSeek-V4's target with its DSpark in the place of the MTP layer."""
    draft = CHECKPOINTS / "v4-dspark"
    tensors = load_file(target / "model.safetensors")
    kept = {name: one for name, one in tensors.items() if not name.startswith("mtp.")}
    folder.mkdir()
    save_file(kept | load_file(draft / "model.safetensors"), folder / "model.safetensors")
    changed(draft, folder)
    return folder


def test_deepseek_v4_s_draft_is_counted_and_checked(tmp_path: Path) -> None:
    own = Speculation("dspark", 5, CHECKPOINTS / "v4-dspark")
    request = {"draft": own, "speculative_tokens": 5, "dtype": "float32"}
    made, without = plan(DEMO, **request), plan(DEMO, dtype="float32")
    # Matrices are stored in sixteen bits, what is held in float32 is stored so.
    stored = read_headers(CHECKPOINTS / "v4-dspark").values()
    values = sum(torch.Size(shape).numel() for shape, _ in stored)
    assert made.weights["draft"] == 4 * values
    windows = sum(use.layers for use in made.caches if use.window)
    assert windows == sum(use.layers for use in without.caches if use.window) + 2
    assert made.pool.smallest_shared_prefix > without.pool.smallest_shared_prefix
    assert check_checkpoint(DEMO, own).problems == []

    both, inside = joined(DEMO, tmp_path / "both"), Speculation("dspark", 2)
    same = plan(both, **request | {"draft": inside, "speculative_tokens": 2})
    assert same.weights == made.weights
    assert same.pool.stride == made.pool.stride
    assert check_checkpoint(both, inside).problems == []
    half = plan(both, layout=Layout(tensor=2), **request | {"draft": own}).weights["draft"]
    assert made.weights["draft"] / 2 < half < made.weights["draft"]
    # A config alone.
    config = plan(changed(both, tmp_path), **request | {"draft": inside, "speculative_tokens": 2})
    assert config.weights == made.weights

    (problem,) = check_checkpoint(DEMO, inside).problems
    assert "dspark_target_layer_ids" in problem
    with pytest.raises(InvalidInputError, match="without a model"):
        plan(QWEN3, draft=inside, speculative_tokens=2)
    (problem,) = check_checkpoint(DEMO, Speculation("dspark", 5, QWEN3)).problems
    assert "model_type='qwen3'" in problem


def test_a_quantised_draft_of_deepseek_v4_is_counted_as_it_is_stored(tmp_path: Path) -> None:
    both, stored = joined(DEMO, tmp_path / "both"), tmp_path / "quantised"
    quantise_checkpoint(both, stored, tmp_path / "dequantised", "flash")
    inside = Speculation("dspark", 5)
    assert check_checkpoint(stored, inside).problems == []
    expected = 0
    for name, (shape, dtype) in read_headers(stored).items():
        if not name.startswith("mtp."):
            continue
        size = dtype.itemsize
        if dtype in (torch.bfloat16, torch.float32):
            wide = len(shape) == 1 or is_control_tensor(name) or "confidence" in name
            size = 4 if wide else 2
        expected += torch.Size(shape).numel() * size
    assert plan(stored, draft=inside, speculative_tokens=5).weights["draft"] == expected


def test_ordinary_attention_beside_deepseek_v4_is_counted_in_its_blocks() -> None:
    own = Speculation("dflash", 7, CHECKPOINTS / "v4-dflash2")
    made = plan(DEMO, draft=own, speculative_tokens=7, dtype="float32")
    without = plan(DEMO, dtype="float32")
    stored = read_headers(CHECKPOINTS / "v4-dflash2").values()
    assert made.weights["draft"] == 4 * sum(torch.Size(shape).numel() for shape, _ in stored)
    # Two layers keep keys and values of two heads of 32 in blocks of 256 tokens.
    main, alone = made.pool.groups[0], without.pool.groups[0]
    assert main.bytes_used - alone.bytes_used == 2 * 256 * 2 * 2 * 32 * 4
    assert main.block_tokens == alone.block_tokens == 256
    assert check_checkpoint(DEMO, own).problems == []
    (problem,) = check_checkpoint(DEMO, Speculation("dflash", 7, QWEN3)).problems
    assert "planned are DFlash" in problem


def test_the_command_checks_a_draft() -> None:
    config = {"method": "medusa", "num_speculative_tokens": 3}
    config["model"] = str(CHECKPOINTS / "llama-medusa")
    arguments = ["check-model", str(LLAMA), "--speculative-config"]
    result = CliRunner().invoke(app, [*arguments, json.dumps(config)])
    assert result.exit_code == 1
    assert "Use 4" in result.output
    config["num_speculative_tokens"] = 4
    assert CliRunner().invoke(app, [*arguments, json.dumps(config)]).exit_code == 0
    assert CliRunner().invoke(app, [*arguments, "[]"]).exit_code == 2
