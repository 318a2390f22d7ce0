"""Writes and reads the checkpoint directory in the original DeepSeek-V4 tensor naming."""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tools.tiny_model.config import TinyConfig
from tools.tiny_model.model import TinyDeepseekV4

_FLOAT32 = re.compile(r"(hc_\w+|attn_sink|\.ape|gate\.bias|norm\.weight)$")


def original_tensors(model: TinyDeepseekV4) -> dict[str, torch.Tensor]:
    """Tensors by original name: bfloat16, but float32 for mHC, sinks, ape, gate bias and norms."""
    out: dict[str, torch.Tensor] = {}
    for name, value in model.state_dict().items():
        if name.endswith("experts_w13"):
            for e, both in enumerate(value):
                w1, w3 = both.chunk(2)
                stem = name.replace("experts_w13", f"experts.{e}")
                out[f"{stem}.w1.weight"], out[f"{stem}.w3.weight"] = w1, w3
        elif name.endswith("experts_w2"):
            for e, w2 in enumerate(value):
                out[f"{name.replace('experts_w2', f'experts.{e}')}.w2.weight"] = w2
        else:
            out[name] = value
    for name, value in out.items():
        if value.is_floating_point():
            dtype = torch.float32 if _FLOAT32.search(name) else torch.bfloat16
            out[name] = value.detach().to(dtype).contiguous().clone()
    return out


def save(model: TinyDeepseekV4, directory: Path) -> int:
    """Write ``model.safetensors`` and ``config.json``; returns the size of the weights in bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "model.safetensors"
    save_file(original_tensors(model), path, metadata={"format": "pt"})
    config = json.dumps(model.cfg.to_json(), indent=2) + "\n"
    (directory / "config.json").write_text(config)
    return path.stat().st_size


def load(directory: Path) -> TinyDeepseekV4:
    """The training model, in float32, with the weights of a checkpoint directory."""
    cfg = TinyConfig.load(directory)
    model = TinyDeepseekV4(cfg)
    tensors = load_file(directory / "model.safetensors")
    state: dict[str, torch.Tensor] = {}
    for name, current in model.state_dict().items():
        if name.endswith("experts_w13"):
            stem = name.removesuffix("_w13")
            value = torch.stack(
                [
                    torch.cat([tensors.pop(f"{stem}.{e}.{w}.weight") for w in ("w1", "w3")])
                    for e in range(cfg.n_routed_experts)
                ]
            )
        elif name.endswith("experts_w2"):
            stem = name.removesuffix("_w2")
            value = torch.stack(
                [tensors.pop(f"{stem}.{e}.w2.weight") for e in range(cfg.n_routed_experts)]
            )
        else:
            value = tensors.pop(name)
        state[name] = value.to(current.dtype)
    if tensors:
        raise ValueError(f"{directory} has tensors this model does not know: {sorted(tensors)}")
    model.load_state_dict(state)
    return model.eval()
