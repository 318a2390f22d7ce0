"""Loading a quantised checkpoint takes its size and at most one layer, measured in a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_models_deepseek.deepseek_v4.quantization import resolver_of
from ascend_models_deepseek.deepseek_v4.sharding import Shard
from ascend_models_deepseek.deepseek_v4.weights import main_table
from ascend_models_deepseek.quantized_rules import WeightForms
from ascend_models_deepseek.testing import TinyV4Spec
from safetensors.torch import save_file

TINY = TinyV4Spec(
    compress_ratios=(0, 4, 128, 4),
    num_hash_layers=0,
    hidden_size=1024,
    moe_intermediate_size=1024,
    n_routed_experts=16,
    q_lora_rank=512,
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
from ascend_fused_moe.checkpoint_quant import quant_of
from ascend_fused_moe.layers.routed_experts import AscendRoutedExperts
from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_models_deepseek.deepseek_v4.quantization import resolver_of
from ascend_models_deepseek.deepseek_v4.sharding import Shard
from ascend_models_deepseek.deepseek_v4.weights import ExpertRule, main_table
from ascend_models_deepseek.quantized_rules import WeightForms, finish_weights
from safetensors import safe_open
from torch import nn

folder = Path(sys.argv[1])
config = json.loads((folder / "config.json").read_text())
spec = DeepseekV4Spec.from_config(config)

def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(one for one in lines if name in one).split()[1]) * 1024

table = main_table(spec, Shard.of(spec, 1, 0, (0, spec.vocab_size)))
forms = WeightForms(table, resolver_of(config, folder))
gc.collect()
Path("/proc/self/clear_refs").write_text("5")
before = memory("VmRSS")

root, params = nn.Module(), {}
for rule in table.rules.values():
    params.setdefault(rule.param, []).append(rule)
for name, rules in params.items():
    *path, leaf = name.split(".")
    module = root
    for depth, part in enumerate(path):
        if part not in dict(module.named_children()):
            made = nn.Module()
            if part == "experts":
                scheme = forms.experts(".".join(path[: depth + 1]))
                sizes = spec.n_routed_experts, spec.hidden_size, spec.moe_intermediate_size
                made = AscendRoutedExperts(
                    *sizes, torch.bfloat16, quant=quant_of(scheme, float_rows=True),
                    scale_dtype=scheme.format.scale_dtype,
                )
            module.add_module(part, made)
        module = module.get_submodule(part)
    if isinstance(rules[0], ExpertRule):
        continue
    held = forms.held(name)
    if held is not None:
        module.add_module(leaf, held)
        continue
    rows = sum((r.view or r.shape)[0] for r in rules)
    value = torch.empty(rows, *(rules[0].view or rules[0].shape)[1:])
    module.register_parameter(leaf, nn.Parameter(value, requires_grad=False))

with safe_open(folder / "model.safetensors", framework="pt") as tensors:
    names = list(tensors.keys())
    forms.table.load(root, ((name, tensors.get_tensor(name)) for name in names))
finish_weights(root)
print(json.dumps({"peak": memory("VmHWM") - before, "held": memory("VmRSS") - before}))
"""


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peaks are read from Linux's /proc"
)
@pytest.mark.parametrize("layout", list(CONFIGS))
def test_loading_peaks_at_the_checkpoint_and_one_layer(tmp_path: Path, layout: str) -> None:
    config = TINY.original_config() | CONFIGS[layout]
    spec = DeepseekV4Spec.from_config(config)
    table = main_table(spec, Shard.of(spec, 1, 0, (0, spec.vocab_size)))
    rules = WeightForms(table, resolver_of(config, tmp_path)).table.rules
    stored = {}
    for name, rule in rules.items():
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
    layer = sum(t.nbytes for n, t in stored.items() if n.startswith("layers.1."))
    assert size > 3 * layer > 30 << 20
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    measured = json.loads(run.stdout.splitlines()[-1])
    print(f"{layout}: checkpoint {size}, one layer {layer}, {measured}")
    assert measured["held"] > size / 2, "nothing was loaded"
    assert measured["peak"] <= size + layer
