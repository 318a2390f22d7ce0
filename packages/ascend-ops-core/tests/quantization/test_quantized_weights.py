"""Resolver, layouts and weights of quantised checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_ops_core.devices import facts_of
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.quantization import (
    block_dequantize,
    block_quantize,
    dynamic_quantize,
    mxfp4_dequantize,
    mxfp4_quantize,
    mxfp8_dequantize,
    mxfp8_quantize,
)
from ascend_ops_core.quantized_weights import (
    LayerRules,
    QuantizationResolver,
    Role,
    Scheme,
    WeightPart,
    read_modelslim,
    value_problem,
)
from ascend_ops_core.quantized_weights.formats import Rows
from ascend_ops_core.quantized_weights.schemes import (
    MODELSLIM,
    fp8_block,
    fp8_scaled,
    int8_channel,
    mxfp4,
    mxfp8,
)
from ascend_ops_core.quantized_weights.weight import QuantizedWeight, check_family
from ascend_ops_core.testing import assert_close

RULES = LayerRules(
    kept=(r"(^|\.)(embed_tokens|lm_head|gate)$",),
    packed={"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")},
    renames=((r"^model\.", "language_model.model."),),
)
V4_RULES = LayerRules(kept=(r"(^|\.)gate$",), scale="scale")
BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}


def of(config: dict[str, Any], rules: LayerRules = RULES, slim: Any = None) -> QuantizationResolver:
    return QuantizationResolver.of(config, rules, slim)


def name(resolver: QuantizationResolver, layer: str) -> str | None:
    scheme = resolver.scheme(layer)
    return None if scheme is None else scheme.name


class TestDescriptions:
    def test_no_description_quantises_nothing(self) -> None:
        resolver = of({})
        assert resolver.scheme("model.layers.0.mlp.up_proj") is None
        assert resolver.source is None
        assert resolver.problems(["a"]) == []

    def test_deepseek_v3(self) -> None:
        resolver = of({"quantization_config": BLOCKS | {"ignored_layers": ["model.layers.1"]}})
        assert name(resolver, "model.layers.0.mlp.up_proj") == "fp8 128x128 (float32 scales)"
        assert name(resolver, "model.layers.0.mlp.qkv_proj") == "fp8 128x128 (float32 scales)"
        assert name(resolver, "model.layers.1.mlp.up_proj") is None
        assert name(resolver, "model.layers.10.mlp.up_proj") is not None
        assert name(resolver, "model.layers.0.mlp.gate") is None

    @pytest.mark.parametrize(
        ("experts", "linear", "expert"),
        [
            ("fp4", "fp8 128x128 (e8m0 scales)", "mxfp4"),
            ("fp8", "fp8 128x128 (float32 scales)", "fp8 128x128 (float32 scales)"),
            (None, "fp8 128x128 (e8m0 scales)", "mxfp4"),
        ],
    )
    def test_deepseek_v4(self, experts: str | None, linear: str, expert: str) -> None:
        config = {"quantization_config": BLOCKS} | ({"expert_dtype": experts} if experts else {})
        resolver = of(config, V4_RULES)
        assert name(resolver, "layers.0.attn.wq_a") == linear
        assert name(resolver, "layers.0.ffn.experts.3.w1") == expert
        assert name(resolver, "layers.0.ffn.shared_experts.w1") == linear
        assert name(resolver, "layers.0.ffn.gate") is None

    def test_mxfp8(self) -> None:
        given = {"quant_method": "mxfp8", "ignored_layers": ["re:.*vision.*"]}
        resolver = of({"quantization_config": given})
        scheme = resolver.scheme("model.layers.0.mlp.up_proj")
        assert scheme is not None
        assert [one.suffix for one in scheme.tensors] == ["weight", "weight_scale_inv"]
        assert resolver.scheme("vision_tower.layers.0.fc1") is None

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ({"quant_method": "compresed-tensors"}, "closest: compressed-tensors"),
            ({"quant_method": "awq"}, "known are fp8"),
            (BLOCKS | {"fmt": "e5m2"}, "e5m2"),
            (BLOCKS | {"weight_block_size": [128]}, "weight_block_size"),
        ],
    )
    def test_unknown_formats_are_refused(self, config: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidInputError, match=message):
            of({"quantization_config": config})

    @pytest.mark.parametrize(
        "change",
        [{"expert_dtype": "fp6"}, {"quantization_config": BLOCKS | {"moe_quant_algo": "NVFP4"}}],
    )
    def test_unknown_experts_are_refused(self, change: dict[str, Any]) -> None:
        with pytest.raises(InvalidInputError, match=r"fp6|NVFP4"):
            of({"quantization_config": BLOCKS} | change, V4_RULES)


FLOAT8 = {"type": "float", "num_bits": 8}
BLOCK = FLOAT8 | {"strategy": "block"}
INT8 = {"type": "int", "num_bits": 8, "strategy": "channel"}
FLOAT4 = {"type": "float", "num_bits": 4, "strategy": "group", "group_size": 32}


class TestCompressedTensors:
    def group(self, weights: dict[str, Any], inputs: Any = None, targets: Any = ("Linear",)) -> Any:
        return {"targets": list(targets), "weights": weights, "input_activations": inputs}

    @pytest.mark.parametrize(
        ("weights", "inputs", "form", "expected"),
        [
            (BLOCK | {"block_structure": [64, 128]}, None, "", "fp8 64x128 (float32 scales)"),
            (FLOAT8 | {"strategy": "channel"}, None, "", "fp8 per channel"),
            (FLOAT8 | {"strategy": "tensor"}, {"dynamic": False}, "", "fp8 per tensor"),
            (INT8, {"num_bits": 8, "dynamic": True}, "", "int8 dynamic"),
            (INT8, {"num_bits": 8, "dynamic": False}, "", "int8 static"),
            (FLOAT4, None, "mxfp4-pack-quantized", "mxfp4"),
        ],
    )
    def test_groups(self, weights: Any, inputs: Any, form: str, expected: str) -> None:
        given = {
            "quant_method": "compressed-tensors",
            "format": form,
            "config_groups": {"group_0": self.group(weights, inputs)},
            "ignore": ["lm_head", "re:.*self_attn.*"],
        }
        resolver = of({"quantization_config": given})
        assert name(resolver, "model.layers.0.mlp.up_proj") == expected
        assert name(resolver, "model.layers.0.self_attn.q_proj") is None

    def test_all_unknown_groups_are_named(self) -> None:
        groups = {
            "group_0": self.group({"type": "int", "num_bits": 4, "strategy": "group"}),
            "group_1": self.group({"type": "int", "num_bits": 3, "strategy": "channel"}),
        }
        given = {"quant_method": "compressed-tensors", "config_groups": groups}
        with pytest.raises(InvalidInputError, match=r"group_0 .*num_bits=4.*group_1 .*num_bits=3"):
            of({"quantization_config": given})

    def test_kv_cache_scheme(self) -> None:
        groups = {"g": self.group({"type": "float", "num_bits": 8, "strategy": "channel"})}
        given = {
            "quant_method": "compressed-tensors",
            "config_groups": groups,
            "kv_cache_scheme": {"type": "float", "num_bits": 8},
        }
        assert of({"quantization_config": given}).cache.kv == "float8_e4m3fn"


class TestModelSlim:
    LAYERS = (
        "model.layers.0.self_attn.q_proj",
        "model.layers.0.self_attn.k_proj",
        "model.layers.0.self_attn.v_proj",
        "model.layers.0.mlp.gate_proj",
        "model.layers.0.mlp.up_proj",
    )

    def words(self, kind: str = "W8A8_DYNAMIC") -> dict[str, Any]:
        return {"model_quant_type": kind} | {f"{one}.weight": kind for one in self.LAYERS}

    def test_layers_are_found(self) -> None:
        resolver = of({}, slim=self.words() | {"kv_cache_type": "C8"})
        assert resolver.problems(self.LAYERS) == []
        assert name(resolver, "model.layers.0.self_attn.qkv_proj") == "W8A8_DYNAMIC"
        assert resolver.cache.kv == "int8"

    def test_renamed_and_packed_names_are_found(self) -> None:
        words = {f"language_model.{n}" if "." in n else n: k for n, k in self.words().items()}
        for one in ("q_proj", "k_proj", "v_proj"):
            del words[f"language_model.model.layers.0.self_attn.{one}.weight"]
        words["model.layers.0.self_attn.qkv_proj.weight"] = "W8A8"
        resolver = of({}, slim=words)
        assert resolver.problems(self.LAYERS) == []
        assert name(resolver, "model.layers.0.self_attn.k_proj") == "W8A8"
        assert name(resolver, "model.layers.0.mlp.up_proj") == "W8A8_DYNAMIC"

    def test_every_problem_is_listed_with_the_nearest_key(self) -> None:
        words = self.words() | {"indexer_quant_type": "INT2"}
        words["model.layers.0.self_attn.q_prj.weight"] = words.pop(
            "model.layers.0.self_attn.q_proj.weight"
        )
        words["model.layers.0.mlp.up_proj.weight"] = "W8A8_DYNAMC"
        resolver = of({}, slim=words)
        text = "\n".join(resolver.problems(self.LAYERS))
        assert "does not describe model.layers.0.self_attn.q_proj.weight" in text
        assert "closest: model.layers.0.self_attn.q_prj)" in text
        assert "'W8A8_DYNAMC' for model.layers.0.mlp.up_proj" in text
        assert "closest: W8A8_DYNAMIC)" in text
        assert "indexer_quant_type='INT2'" in text
        assert "gate_proj is W8A8_DYNAMIC" in text
        assert "computed as one layer" in text
        with pytest.raises(InvalidInputError, match="gate_up_proj"):
            resolver.scheme("model.layers.0.mlp.gate_up_proj")

    def test_file(self, tmp_path: Path) -> None:
        assert read_modelslim(tmp_path) is None
        file = tmp_path / "quant_model_description.json"
        file.write_text(json.dumps(self.words()))
        assert read_modelslim(tmp_path) == self.words()
        file.write_text("[1]")
        with pytest.raises(InvalidInputError, match="no JSON object"):
            read_modelslim(tmp_path)


def stored_of(scheme: Scheme, weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A weight in a scheme's checkpoint form by suffix, and what it stands for in float32."""
    form, suffixes = scheme.format, [one.suffix for one in scheme.tensors]
    if scheme.name.startswith("fp8 128"):
        dtype = torch.uint8 if form.powers else torch.float32
        q, scale = block_quantize(weight, rows=128, scale_dtype=dtype)
        plain = block_dequantize(q, scale, torch.float32, rows=128)
        scale = scale.view(torch.float8_e8m0fnu) if form.powers else scale
        return {suffixes[0]: q, suffixes[1]: scale}, plain
    if scheme.name == "mxfp8":
        q, scale = mxfp8_quantize(weight)
        return {suffixes[0]: q, suffixes[1]: scale}, mxfp8_dequantize(q, scale, torch.float32)
    if scheme.name == "mxfp4":
        q, scale = mxfp4_quantize(weight)
        plain = mxfp4_dequantize(q, scale, torch.float32)
        return {
            suffixes[0]: q.view(torch.int8),
            suffixes[1]: scale.view(torch.float8_e8m0fnu),
        }, plain
    if scheme.name.startswith("fp8 per"):
        scale = weight.abs().amax(1, keepdim=True) / 448
        scale = scale if scheme.name.endswith("channel") else scale.max().reshape(1)
        q = (weight / scale).to(torch.float8_e4m3fn)
        return {"weight": q, "weight_scale": scale, "input_scale": torch.ones(1)}, q.float() * scale
    if scheme.name == "W4A8_DYNAMIC":
        scale = weight.abs().amax(1, keepdim=True) / 7
        codes = (weight / scale).round().to(torch.int8)
        nibbles = (codes & 0xF).view(torch.uint8)
        packed = (nibbles[0::2] | nibbles[1::2] << 4).view(torch.int8)
        made = {"weight": packed, "weight_scale": scale, "weight_offset": torch.zeros_like(scale)}
        return made, codes.float() * scale
    q, scale = dynamic_quantize(weight)
    made = {"weight": q, "weight_scale": scale[:, None].clone()}
    if scheme.name in ("W8A8", "int8 static"):
        made["input_scale"] = torch.tensor([0.03])
    if scheme.name == "W8A8":
        made["deq_scale"] = scale * 0.03
        made["quant_bias"] = torch.zeros(len(scale), dtype=torch.int32)
        made["input_offset"] = torch.zeros(1)
    return made, q.float() * scale[:, None]


SCHEMES = {
    "v3": fp8_block("weight_scale_inv", powers=False),
    "v4": fp8_block("scale", powers=True),
    "mxfp8": mxfp8("weight_scale_inv"),
    "mxfp4": mxfp4("weight", "scale", Rows.MXFP8),
    "fp8_channel": fp8_scaled(channels=True, static_input=False),
    "fp8_tensor": fp8_scaled(channels=False, static_input=True),
    "int8": int8_channel(),
    "int8_static": int8_channel(static_input=True),
    "w8a8": MODELSLIM["W8A8"],
    "w8a8_dynamic": MODELSLIM["W8A8_DYNAMIC"],
    "w4a8": MODELSLIM["W4A8_DYNAMIC"],
}


def filled(scheme: Scheme, parts: list[WeightPart], stored: list[dict[str, torch.Tensor]]) -> Any:
    weight = QuantizedWeight(scheme, parts)
    for index, tensors in enumerate(stored):
        for one in weight.layout.placements(index):
            tensor = tensors.get(one.stored.suffix)
            if tensor is None:
                assert one.stored.optional, one.stored
                continue
            assert tensor.dtype in one.stored.dtypes, one.stored
            assert tuple(tensor.shape) in one.shapes, one.stored
            assert value_problem(one.stored, tensor) is None
            if one.parameter:
                parameter = getattr(weight, one.parameter)
                parameter.data[one.target].copy_(one.convert(tensor)[one.source])
    weight.finish()
    weight.finish()
    return weight


@pytest.mark.parametrize("key", SCHEMES)
@pytest.mark.parametrize("slices", ["whole", "rows", "columns"])
def test_weights_of_every_scheme_equal_the_dequantised_ones(key: str, slices: str) -> None:
    """Two layers below each other, whole or any slice of them, also within a block."""
    scheme = SCHEMES[key]
    assert scheme is not None
    torch.manual_seed(1)
    sizes, columns = (200, 72), 192
    made = [stored_of(scheme, torch.randn(rows, columns) * 0.1) for rows in sizes]
    rows = [(37, 165), (20, 71)] if slices == "rows" else [(0, 200), (0, 72)]
    own = (66, 164) if slices == "columns" else (0, columns)
    parts = [WeightPart(n, columns, r, own) for n, r in zip(sizes, rows, strict=True)]
    weight = filled(scheme, parts, [tensors for tensors, _ in made])
    plain = torch.cat([p[slice(*r), slice(*own)] for (_, p), r in zip(made, rows, strict=True)])
    assert weight.shape == tuple(plain.shape)
    x = torch.randn(3, plain.shape[1])
    assert_close(weight(x), x.double() @ plain.double().T, scale=2)


def test_equal_schemes_are_equal() -> None:
    assert mxfp8("scale") == mxfp8("scale") != mxfp8("weight_scale")
    assert len({fp8_block("scale", powers=True), fp8_block("scale", powers=True)}) == 1
    assert fp8_block("scale", powers=True) != fp8_block("scale", powers=False)
    assert fp8_block("scale", powers=True, block=(64, 128)) != fp8_block("scale", powers=True)


def test_groups_are_products_of_their_rows() -> None:
    scheme = SCHEMES["v4"]
    assert scheme is not None
    torch.manual_seed(2)
    tensors, plain = stored_of(scheme, torch.randn(3 * 48, 160) * 0.1)
    weight = filled(scheme, [WeightPart(144, 160)], [tensors])
    x = torch.randn(5, 3, 160)
    expected = torch.einsum("tgk,gnk->tgn", x.double(), plain.double().view(3, 48, 160))
    assert_close(weight.groups(x), expected, scale=2)


def test_memory_is_that_of_the_checkpoint() -> None:
    scheme = SCHEMES["v4"]
    assert scheme is not None
    weight = QuantizedWeight(scheme, [WeightPart(256, 512)])
    held = sum(one.nbytes for one in weight.parameters())
    assert held == scheme.nbytes(256, 512) == 256 * 512 + 2 * 4


@pytest.mark.parametrize(
    ("key", "suffix", "bad", "message"),
    [
        ("v4", "scale", torch.tensor([[255]], dtype=torch.uint8), "code 255"),
        ("v3", "weight_scale_inv", torch.tensor([[float("nan"), 1.0, -1.0]]), "2 scale"),
        ("w8a8_dynamic", "weight_offset", torch.tensor([[1.0], [0.0]]), "offsets"),
        ("v4", "scale", torch.zeros(1, 1, dtype=torch.uint8), None),
        ("v3", "weight_scale_inv", torch.zeros(1, 1), None),
    ],
)  # fmt: skip
def test_values_by_rule(key: str, suffix: str, bad: torch.Tensor, message: str | None) -> None:
    scheme = SCHEMES[key]
    assert scheme is not None
    stored = next(one for one in scheme.tensors if one.suffix == suffix)
    found = value_problem(stored, bad)
    assert (found is None) if message is None else (found is not None and message in found)


def test_int64_scales_hold_a_float() -> None:
    scheme = SCHEMES["w8a8"]
    assert scheme is not None
    floats = torch.tensor([0.25, 3.5])
    stored = scheme.tensor(Role.DEQUANTIZATION_SCALE)
    assert stored is not None
    weight = QuantizedWeight(scheme, [WeightPart(2, 4)])
    placement = next(p for p in weight.layout.placements(0) if p.stored is stored)
    wide = floats.view(torch.int32).long() | (1 << 40)
    torch.testing.assert_close(placement.convert(wide), floats[:, None], rtol=0, atol=0)


def test_cuts_within_a_byte_are_refused() -> None:
    scheme = SCHEMES["mxfp4"]
    assert scheme is not None
    with pytest.raises(InvalidInputError, match="share a byte"):
        QuantizedWeight(scheme, [WeightPart(4, 64, None, (0, 31))])


def test_families_without_float8_are_refused() -> None:
    scheme = SCHEMES["v3"]
    assert scheme is not None
    with pytest.raises(InvalidInputError, match="no float8"):
        check_family(scheme, facts_of("A3"))
    check_family(scheme, facts_of("A5"))
