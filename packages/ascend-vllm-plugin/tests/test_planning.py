"""Where a card's memory goes: weights against real checkpoints, and plans that (do not) fit."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_models_deepseek.deepseek_v4.quantization import LAYER_RULES
from ascend_models_deepseek.deepseek_v4.sharding import Shard
from ascend_models_deepseek.deepseek_v4.weights import main_table
from ascend_models_deepseek.testing import SPECS, write_checkpoint
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.quantized_weights import QuantizationResolver
from ascend_vllm_plugin.planning.advice import advice, notes, refusal
from ascend_vllm_plugin.planning.plan import Plan, make_plan
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.source import ModelSource, dtype_of, read_model, weight_format_of
from ascend_vllm_plugin.planning.tensor_sizes import (
    TensorClass,
    WeightFormat,
    tensor_bytes,
    tensor_class,
)
from ascend_vllm_plugin.planning.weights import (
    Layout,
    parameters,
    weights_by_part,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

DATA = Path(__file__).parent / "data"
GIB = 1024**3
MILLION = 1048576
LOADED = torch.bfloat16


@cache
def source(name: str) -> ModelSource:
    return read_model(DATA / f"deepseek_v4_{name}.json")


def published(name: str) -> DeepseekV4Spec:
    return source(name).spec


def plan(name: str, device: str = "A2", **settings: Any) -> Plan:
    settings = {"gpu_memory_utilization": 0.9, **settings}
    return make_plan(source(name), PlanRequest(device, **settings))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(SPECS["mixed"], tmp_path_factory.mktemp("checkpoint"))


@pytest.mark.parametrize(("name", "billions"), [("flash", 284), ("pro", 1600)])
def test_published_shapes_have_the_published_number_of_parameters(name: str, billions: int) -> None:
    """284 billion and 1.6 trillion, as DeepSeek's model cards say."""
    assert parameters(published(name)) / 1e9 == pytest.approx(billions, rel=0.02)


def test_weights_are_those_of_a_checkpoint(checkpoint: Path) -> None:
    """Against the file that transformers' model made: in float32 only tables of ids shrink."""
    file = load_file(checkpoint / "model.safetensors")
    main = {name: tensor for name, tensor in file.items() if not name.startswith("mtp.")}
    spec = read_model(checkpoint).spec
    parts = weights_by_part(spec, Layout(), torch.float32, draft=True)
    assert sum(n for part, n in parts.items() if part != "MTP draft") == sum(
        4 * tensor.numel() for tensor in main.values()
    )
    shared = ("mtp.0.emb.tok_emb.weight", "mtp.0.head.weight")
    draft = [t for name, t in file.items() if name.startswith("mtp.") and name not in shared]
    assert parts["MTP draft"] == sum(4 * tensor.numel() for tensor in draft)
    experts = [tensor for name, tensor in main.items() if ".ffn.experts." in name]
    assert parts["routed experts"] == sum(4 * tensor.numel() for tensor in experts)
    assert parts["embedding"] == 4 * main["embed.weight"].numel()
    indexer = [tensor for name, tensor in main.items() if ".attn.indexer." in name]
    assert parts["indexer"] == sum(4 * tensor.numel() for tensor in indexer)


def test_a_draft_with_an_embedding_of_its_own_counts_it(checkpoint: Path) -> None:
    spec = read_model(checkpoint).spec
    without = weights_by_part(spec, Layout(), LOADED, draft=True)
    owned = weights_by_part(
        spec, Layout(), LOADED, draft=True, draft_owns={"mtp.0.emb.tok_emb.weight"}
    )
    rows = spec.vocab_size * spec.hidden_size * 2
    assert owned["MTP draft"] - without["MTP draft"] == rows


@pytest.mark.parametrize("name", ["flash", "pro"])
@pytest.mark.parametrize("cards", [2, 4, 8])
def test_cards_together_hold_every_expert_once(name: str, cards: int) -> None:
    spec = published(name)
    whole = weights_by_part(spec, Layout(), LOADED)
    for layout in (Layout(cards), Layout(cards, 1, cards), Layout(1, cards, cards)):
        split = weights_by_part(spec, layout, LOADED)
        assert split["routed experts"] * cards == whole["routed experts"], layout
        assert split["compressor"] == whole["compressor"]
        if layout.tensor > 1:
            assert split["embedding"] * cards == whole["embedding"]
            assert split["attention"] < whole["attention"]


def test_experts_that_do_not_divide_fill_the_fullest_card() -> None:
    spec = published("flash")
    one = weights_by_part(spec, Layout(), LOADED)["routed experts"] // spec.n_routed_experts
    layout = Layout(1, 3, 3)
    assert weights_by_part(spec, layout, LOADED)["routed experts"] == 86 * one


def test_a_vocabulary_is_padded_before_it_is_split() -> None:
    spec = DeepseekV4Spec.from_config(SPECS["wide_window"].original_config())
    assert spec.vocab_size == 500
    parts = weights_by_part(spec, Layout(2), LOADED)
    assert parts["embedding"] == 256 * spec.hidden_size * 2


@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (128, 128), (129, 256), (1000, 96)])
def test_bytes_of_quantized_matrices(rows: int, columns: int) -> None:
    """Against tensors of these formats."""
    shape = (rows, columns)
    blocks = (-(-rows // 128), -(-columns // 128))
    eight = torch.empty(shape, dtype=torch.float8_e4m3fn).nbytes
    linear, expert = TensorClass.LINEAR, TensorClass.EXPERT
    fp8 = tensor_bytes(linear, shape, LOADED, WeightFormat.FP8)
    assert fp8 == eight + torch.empty(blocks, dtype=torch.float32).nbytes
    packed = torch.empty(rows, columns // 2, dtype=torch.uint8).nbytes
    scales = torch.empty(rows, columns // 32, dtype=torch.float8_e8m0fnu).nbytes
    assert tensor_bytes(expert, shape, LOADED, WeightFormat.FP8_MXFP4) == packed + scales
    one_byte = torch.empty(blocks, dtype=torch.float8_e8m0fnu).nbytes
    assert tensor_bytes(linear, shape, LOADED, WeightFormat.FP8_MXFP4) == eight + one_byte
    channel = torch.empty(rows, 2, dtype=torch.float32).nbytes
    assert tensor_bytes(linear, shape, LOADED, WeightFormat.W8A8) == eight + channel
    for kept in (WeightFormat.FP8, WeightFormat.W8A8):
        plain = torch.empty(shape, dtype=LOADED).nbytes
        assert tensor_bytes(TensorClass.PLAIN, shape, LOADED, kept) == plain


@pytest.mark.parametrize(
    ("name", "cards", "fits"),
    [("flash", 8, True), ("flash", 16, True), ("pro", 8, False), ("pro", 16, False)],
)
def test_published_models_at_a_million_tokens(name: str, cards: int, fits: bool) -> None:
    layout = Layout(8, cards // 8, cards) if name == "flash" else Layout(cards, 1, cards)
    made = plan(name, layout=layout, max_model_len=MILLION)
    assert made.weight_format is WeightFormat.FP8_MXFP4
    assert made.fits is fits
    refused = refusal(made)
    assert (refused is None) is fits
    if refused is not None:
        assert "the largest context that fits" in str(refused) or "no context" in str(refused)
        assert str(MILLION) in refused.value


@settings(deadline=None, max_examples=25)
@given(
    length=st.integers(1, MILLION),
    utilization=st.floats(0.55, 1),
    concurrency=st.integers(1, 20),
    tokens=st.integers(1, 9000),
    drafted=st.integers(0, 3),
)
def test_longest_context_is_the_last_that_fits(
    length: int, utilization: float, concurrency: int, tokens: int, drafted: int
) -> None:
    made = plan(
        "flash",
        layout=Layout(8, 1, 8),
        max_model_len=length,
        gpu_memory_utilization=utilization,
        concurrency=concurrency,
        max_num_batched_tokens=tokens,
        speculative_tokens=drafted,
    )
    longest = made.longest_context
    assert made.fits is (length <= longest)
    request = made.request
    if longest:
        assert make_plan(made.source, replace(request, max_model_len=longest)).fits
    if longest < MILLION:
        assert not make_plan(made.source, replace(request, max_model_len=longest + 1)).fits


def test_the_error_names_the_largest_context_and_every_advice_works() -> None:
    made = plan("flash", layout=Layout(8, 1, 8), weight_format="w8a8", concurrency=4)
    refused = refusal(made)
    assert refused is not None
    longest = int(re.findall(r"context that fits is (\d+) tokens", refused.limit)[0])
    shorter = replace(made.request, max_model_len=longest)
    assert make_plan(made.source, shorter).fits
    found = "; ".join(advice(made))
    cards = re.search(r"--tp (\d+) --dp (\d+) --ep (\d+)", found)
    assert cards is not None, found
    wider = Layout(*map(int, cards.groups()))
    assert make_plan(made.source, replace(made.request, layout=wider)).fits
    assert all(part.lower() in str(refused).lower() for part in advice(made))


def test_fewer_requests_are_offered_when_they_fit() -> None:
    made = plan("flash", layout=Layout(8, 1, 8), concurrency=50)
    found = re.search(r"hold (\d+) request", "; ".join(advice(made)))
    assert found is not None
    fewer = int(found[1])
    assert make_plan(made.source, replace(made.request, concurrency=fewer)).fits
    assert not make_plan(made.source, replace(made.request, concurrency=fewer + 1)).fits


def test_weights_that_do_not_fit_are_said_to_be_too_large() -> None:
    refused = refusal(plan("pro", layout=Layout(8, 1, 8)))
    assert refused is not None
    assert refused.limit.startswith("no context fits: weights and estimates take")
    assert refused.remedy == "Use 32 cards (--tp 16 --dp 2 --ep 32)."


def test_nothing_helps_on_a_tiny_card() -> None:
    refused = refusal(plan("pro", memory_bytes=GIB))
    assert refused is not None
    assert "Neither a shorter context nor fewer requests" in refused.remedy


def test_parts_add_up_to_the_card() -> None:
    from ascend_vllm_plugin.planning.report import segments

    made = plan("flash", layout=Layout(8, 1, 8), speculative_tokens=2)
    assert sum(segment.bytes for segment in segments(made)) == made.memory_bytes.bytes


def test_memory_of_a_device_is_asked_for_where_no_document_states_it() -> None:
    for device in ("A5", "cpu"):
        with pytest.raises(InvalidInputError, match="--memory-gib"):
            plan("flash", device)
        assert plan("flash", device, memory_bytes=64 * GIB).memory_bytes.how == "as given"


@pytest.mark.parametrize("device", ["A2", "A5"])
def test_caches_in_the_model_s_dtype_take_more(device: str) -> None:
    """As the engine's switch does: the planner asks the same table."""
    settings = {"memory_bytes": 64 * GIB, "layout": Layout(8, 1, 8), "max_model_len": 65536}
    family = plan("flash", device, **settings)
    model = plan("flash", device, cache_dtype="model", **settings)
    assert all(use.scales is None for use in model.caches)
    assert {use.role.value: use.row_bytes for use in model.caches if use.dtype == LOADED} == {
        "swa_cache": 1024, "compressed_cache": 1024, "index_cache": 256
    }  # fmt: skip
    sizes = {use.role.value: use.row_bytes for use in family.caches if use.scales is not None}
    packed = {"swa_cache": 640, "compressed_cache": 640, "index_cache": 132}
    assert sizes == (packed if device == "A5" else {"index_cache": 130})
    used = [sum(use.request_bytes for use in made.caches) for made in (family, model)]
    assert used[0] < used[1]
    # The caches share what is left, whatever a row takes.
    assert family.cache_bytes == model.cache_bytes


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"kv_dtype": "float32"}, "keeps key-value rows in bfloat16"),
        ({"cache_dtype": "int8"}, "cache_dtype='int8'.*family, model"),
        ({"layout": Layout(3)}, "must divide"),
        ({"max_model_len": MILLION + 1}, "max_position_embeddings"),
        ({"block_size": 48}, "block_size=48"),
        ({"gpu_memory_utilization": 0.0}, "gpu_memory_utilization"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"speculative_tokens": -1}, "speculative_tokens"),
        ({"dtype": "int3"}, "int3"),
        ({"weight_format": "int3"}, "int3"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        plan("flash", **settings)


def test_310p_has_no_sparse_attention() -> None:
    with pytest.raises(InvalidInputError, match="310P cannot serve"):
        plan("flash", "310P")


@pytest.mark.parametrize(("tensor", "data", "expert"), [(0, 1, 1), (2, 2, 2), (8, 1, 4)])
def test_layouts_that_vllm_does_not_have(tensor: int, data: int, expert: int) -> None:
    with pytest.raises(InvalidInputError):
        Layout(tensor, data, expert)


def test_speculation_needs_a_draft(tmp_path: Path) -> None:
    config = json.loads((DATA / "deepseek_v4_flash.json").read_text())
    config["num_nextn_predict_layers"] = 0
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidInputError, match="num_nextn_predict_layers=0"):
        make_plan(read_model(tmp_path), PlanRequest("A2", speculative_tokens=1))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, WeightFormat.MODEL),
        (
            {"model_type": "deepseek_v4", "quantization_config": {"quant_method": "fp8"}},
            WeightFormat.FP8_MXFP4,
        ),
        (
            {"model_type": "deepseek_v32", "quantization_config": {"quant_method": "fp8"}},
            WeightFormat.FP8,
        ),
        (
            {"quantization_config": {"quant_method": "fp8"}, "expert_dtype": "fp8"},
            WeightFormat.FP8,
        ),
    ],
)
def test_format_of_a_config(config: dict[str, Any], expected: WeightFormat) -> None:
    assert weight_format_of(config, "auto") is expected
    assert weight_format_of(config, "w8a8") is WeightFormat.W8A8


def test_unknown_quantization_asks_for_the_format() -> None:
    config = {"quantization_config": {"quant_method": "gptq"}}
    with pytest.raises(InvalidInputError, match=r"gptq.*known are fp8"):
        weight_format_of(config, "auto")


def test_stored_sizes_are_those_of_the_described_layers() -> None:
    """Layer by layer, as ModelSlim describes them; experts in 4 bits, the rest in 8."""
    flash = source("flash").spec
    shapes = main_table(flash, Shard.of(flash, 1, 0, (0, flash.vocab_size)))
    words = {
        name: "W4A8_DYNAMIC" if ".ffn.experts." in name else "W8A8_DYNAMIC"
        for name, rule in shapes.rules.items()
        if tensor_class(name, rule) in (TensorClass.LINEAR, TensorClass.EXPERT)
    }
    resolver = QuantizationResolver.of({}, LAYER_RULES, words)
    assert weight_format_of({}, "auto", resolver) is WeightFormat.STORED
    found = weights_by_part(flash, Layout(), LOADED, WeightFormat.STORED, resolver=resolver)
    hidden, inter = flash.hidden_size, flash.moe_intermediate_size
    one = 3 * hidden * inter // 2 + 4 * (2 * inter + hidden)
    experts = flash.n_routed_experts * flash.num_hidden_layers
    assert found["routed experts"] == experts * one
    with pytest.raises(InvalidInputError, match="describes no quantization"):
        weight_format_of({}, "stored")


@pytest.mark.parametrize(
    ("config", "asked", "expected"),
    [
        ({"torch_dtype": "float32"}, "auto", torch.bfloat16),
        ({"torch_dtype": "float16"}, "auto", torch.float16),
        ({}, "auto", torch.bfloat16),
        ({"torch_dtype": "float16"}, "float32", torch.float32),
    ],
)
def test_dtype_is_the_one_that_vllm_takes(
    config: dict[str, Any], asked: str, expected: torch.dtype
) -> None:
    assert dtype_of(config, asked, WeightFormat.MODEL) is expected


@pytest.mark.parametrize("text", ["", "[]", '{"model_type": "gpt2"}'])
def test_what_is_no_deepseek_v4_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InvalidInputError):
        read_model(tmp_path)
    with pytest.raises(InvalidInputError, match=r"no config\.json"):
        read_model(tmp_path / "absent")


def test_notes_say_what_is_not_so_yet() -> None:
    made = plan("flash", layout=Layout(8, 1, 8))
    text = "\n".join(notes(made))
    for part in (
        "not run on hardware",
        "takes no float8",
    ):
        assert part in text
    assert "padding" not in text
    assert "not run on hardware" not in "\n".join(notes(plan("flash", "cpu", memory_bytes=GIB)))


def test_blocks_that_are_mostly_padding_are_named(tmp_path: Path) -> None:
    """Layers of ratio 128 alone have two rows where the sliding window has 64."""
    config = json.loads((DATA / "deepseek_v4_flash.json").read_text())
    config["compress_ratios"] = [128] * config["num_hidden_layers"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    made = make_plan(read_model(tmp_path), PlanRequest("A2", Layout(8, 1, 8)))
    assert any(note.startswith("97 % of the blocks of compressed") for note in notes(made))


def test_hccl_buffer_that_is_too_small_is_named() -> None:
    """128 rows of 7168 bfloat16 to 8 cards of 48 experts take more than HCCL's 200 MiB."""
    made = plan("pro", layout=Layout(8, 1, 8), max_num_seqs=256, speculative_tokens=1)
    needed = made.needed_hccl.mib
    row, packet = 14336, 14848  # 2 x 7168, and that plus 64 rounded up to 512
    tokens = 512 // 8
    assert needed == -(-2 * (48 * tokens * 8 * packet + 7 * tokens * row) // 1024**2)
    assert any(f"Set it to {needed}" in note for note in notes(made))
    enough = replace(made.request, hccl_buffer_mib=needed)
    assert not any("HCCL_BUFFSIZE" in note for note in notes(make_plan(made.source, enough)))
