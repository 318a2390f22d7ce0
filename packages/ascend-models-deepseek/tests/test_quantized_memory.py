"""Loading a quantised checkpoint takes its size and at most one layer, measured in a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_fused_moe.quantized_rules import WeightForms
from ascend_fused_moe.testing.quantizers import FP8
from ascend_models_deepseek.deepseek_v3.quantization import resolver_of as v3_resolver
from ascend_models_deepseek.deepseek_v3.sharding import Shard as V3Shard
from ascend_models_deepseek.deepseek_v3.weights import main_table as v3_table
from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_models_deepseek.deepseek_v4.quantization import resolver_of
from ascend_models_deepseek.deepseek_v4.sharding import Shard
from ascend_models_deepseek.deepseek_v4.weights import main_table
from ascend_models_deepseek.deepseek_v32.architecture import DEEPSEEK_V32
from ascend_models_deepseek.deepseek_v32.config import DeepseekV32Spec
from ascend_models_deepseek.testing import TinyV4Spec
from ascend_models_deepseek.testing.tiny_v32 import TinyV32Spec
from ascend_ops_core.checkpoint.table import TensorRule
from safetensors.torch import save_file

TINY = TinyV4Spec(
    compress_ratios=(0, 4, 128, 4),
    num_hash_layers=0,
    hidden_size=1024,
    moe_intermediate_size=1024,
    n_routed_experts=16,
    q_lora_rank=512,
)
TINY_V32 = TinyV32Spec(
    hidden_size=1024,
    moe_intermediate_size=1024,
    n_routed_experts=16,
    q_lora_rank=512,
    kv_lora_rank=128,
)
CONFIGS = {
    "flash": {
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
        "expert_dtype": "fp4",
    },
    "flash_base": {
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
        "expert_dtype": "fp8",
    },
}

SCRIPT = r"""
import gc, json, sys
from pathlib import Path
import torch
from ascend_fused_moe.quantized_rules import WeightForms, finish_weights
from ascend_fused_moe.testing.table_model import ExpertSizes, model_of
from safetensors import safe_open

folder = Path(sys.argv[1])
config = json.loads((folder / "config.json").read_text())

def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(one for one in lines if name in one).split()[1]) * 1024

if config["model_type"] == "deepseek_v4":
    from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
    from ascend_models_deepseek.deepseek_v4.quantization import resolver_of
    from ascend_models_deepseek.deepseek_v4.sharding import Shard
    from ascend_models_deepseek.deepseek_v4.weights import main_table

    spec = DeepseekV4Spec.from_config(config)
    table = main_table(spec, Shard.of(spec, 1, 0, (0, spec.vocab_size)))
else:
    from ascend_models_deepseek.architectures import ARCHITECTURES
    from ascend_models_deepseek.deepseek_v3.quantization import resolver_of
    from ascend_models_deepseek.deepseek_v3.sharding import Shard
    from ascend_models_deepseek.deepseek_v3.weights import main_table

    kind = ARCHITECTURES[config["model_type"]]
    spec = kind.spec.from_config(config)
    table = main_table(kind, spec, Shard.of(spec, 1, 0, (0, spec.vocab_size)))
forms = WeightForms(table, resolver_of(config, folder))
gc.collect()
Path("/proc/self/clear_refs").write_text("5")
before = memory("VmRSS")

sizes = ExpertSizes(spec.n_routed_experts, spec.hidden_size, spec.moe_intermediate_size)
root = model_of(table, forms, sizes, torch.bfloat16)

with safe_open(folder / "model.safetensors", framework="pt") as tensors:
    names = list(tensors.keys())
    forms.table.load(root, ((name, tensors.get_tensor(name)) for name in names))
finish_weights(root)
print(json.dumps({"peak": memory("VmHWM") - before, "held": memory("VmRSS") - before}))
"""


def v4(folder: Path, layout: str) -> tuple[dict[str, Any], dict[str, TensorRule], str]:
    """Config, the checkpoint's tensors, and how the names of a layer with experts begin."""
    config = TINY.original_config() | CONFIGS[layout]
    spec = DeepseekV4Spec.from_config(config)
    table = main_table(spec, Shard.of(spec, 1, 0, (0, spec.vocab_size)))
    return config, WeightForms(table, resolver_of(config, folder)).table.rules, "layers.1."


def v32(folder: Path) -> tuple[dict[str, Any], dict[str, TensorRule], str]:
    """The same for DeepSeek-V3.2."""
    config = TINY_V32.published_config() | {"quantization_config": FP8}
    spec = DeepseekV32Spec.from_config(config)
    shard = V3Shard.of(spec, 1, 0, (0, spec.vocab_size))
    table = v3_table(DEEPSEEK_V32, spec, shard)
    return config, WeightForms(table, v3_resolver(config, folder)).table.rules, "model.layers.1."


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peaks are read from Linux's /proc"
)
@pytest.mark.parametrize("layout", [*CONFIGS, "v32"])
def test_loading_peaks_at_the_checkpoint_and_one_layer(tmp_path: Path, layout: str) -> None:
    """``kv_b_proj`` and ``indexer.wk`` of V3.2 are held in bfloat16, far less than a layer."""
    config, rules, first = v32(tmp_path) if layout == "v32" else v4(tmp_path, layout)
    stored = {}
    for name, rule in rules.items():
        if rule.optional:
            continue
        shape, dtype = rule.shapes[0], rule.loadable[0]
        # Codes that are finite in every format; values do not matter.
        if dtype.itemsize == 1:
            stored[name] = torch.randint(0, 120, shape, dtype=torch.uint8).view(dtype)
        else:
            stored[name] = (
                torch.rand(shape).to(dtype) if rule.below is None else torch.zeros(shape).long()
            )
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(stored, tmp_path / "model.safetensors")
    # Pages that are not on the disk yet cannot be given back while they are read.
    with (tmp_path / "model.safetensors").open("rb") as file:
        os.fsync(file.fileno())
    size = sum(tensor.nbytes for tensor in stored.values())
    layer = sum(t.nbytes for n, t in stored.items() if n.startswith(first))
    assert size > 3 * layer > 30 << 20
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    measured = json.loads(run.stdout.splitlines()[-1])
    print(f"{layout}: checkpoint {size}, one layer {layer}, {measured}")
    assert measured["held"] > size / 2, "nothing was loaded"
    assert measured["peak"] <= size + layer
