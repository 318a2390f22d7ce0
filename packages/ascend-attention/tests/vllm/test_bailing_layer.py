"""vLLM's lightning attention layer in our form, on two ranks, against loops over tokens.

transformers has no model with this layer: its ``bailing_hybrid`` is a later one, with delta rules.
"""

from __future__ import annotations

import random
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_ops_core.testing import assert_close

pytestmark = pytest.mark.engine

PREFIX, LAYER, LAYERS, RANKS = "model.layers.1.attention", 1, 4, 2
HEADS, DIM, HIDDEN, ROTATED, THETA, EPS = 6, 8, 32, 4, 1e4, 1e-5
GROUPS = 2
CONFIG = SimpleNamespace(
    hidden_size=HIDDEN,
    num_attention_heads=HEADS,
    head_dim=DIM,
    num_hidden_layers=LAYERS,
    max_position_embeddings=512,
    rope_parameters={"rope_theta": THETA, "partial_rotary_factor": ROTATED / DIM},
    use_qk_norm=True,
    use_linear_silu=True,
    use_bias=False,
    use_qkv_bias=True,
    group_norm_size=GROUPS,
    rms_norm_eps=EPS,
)
SHAPES = {
    "query_key_value.weight": (3 * HEADS * DIM, HIDDEN),
    "query_key_value.bias": (3 * HEADS * DIM,),
    "query_layernorm.weight": (DIM,),
    "key_layernorm.weight": (DIM,),
    "g_proj.weight": (HEADS * DIM, HIDDEN),
    "g_norm.weight": (HEADS * DIM,),
    "dense.weight": (HIDDEN, HEADS * DIM),
}


def weights() -> dict[str, torch.Tensor]:
    new = torch.Generator().manual_seed(3)
    made = {name: torch.randn(shape, generator=new) for name, shape in SHAPES.items()}
    return {
        name: one / one.shape[-1] ** 0.5 if one.dim() == 2 else 1 + 0.1 * one
        for name, one in made.items()
    }


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def _rotate(x: torch.Tensor, position: int) -> torch.Tensor:
    """Halves of the first dimensions of ``[H, D]``."""
    half = ROTATED // 2
    angle = position / THETA ** (torch.arange(half).double() / half)
    first, second, rest = x[:, :half], x[:, half:ROTATED], x[:, ROTATED:]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=1)


def definition(hidden: torch.Tensor) -> torch.Tensor:
    """``[T, HIDDEN]`` float64 of one request, one token after the other."""
    w = {name: one.double() for name, one in weights().items()}
    # The head's slope of ALiBi for six heads, and the factor of the layer.
    slopes = torch.tensor([2.0**-power for power in (2, 4, 6, 8, 1, 3)]).double()
    slopes = slopes * (1 - LAYER / (LAYERS - 1) + 1e-5)
    state = torch.zeros(HEADS, DIM, DIM).double()
    rows = []
    for position, x in enumerate(hidden.double()):
        qkv = w["query_key_value.weight"] @ x + w["query_key_value.bias"]
        q, k, v = (qkv * qkv.sigmoid()).view(3, HEADS, DIM)
        q = _rotate(_norm(q, w["query_layernorm.weight"]), position) * DIM**-0.5
        k = _rotate(_norm(k, w["key_layernorm.weight"]), position)
        state = state * torch.exp(-slopes)[:, None, None] + k[:, :, None] * v[:, None, :]
        out = (q[:, :, None] * state).sum(1).flatten().view(GROUPS, -1)
        normed = _norm(out, w["g_norm.weight"].view(GROUPS, -1)).flatten()
        rows.append(w["dense.weight"] @ (normed * (w["g_proj.weight"] @ x).sigmoid()))
    return torch.stack(rows)


def _layer(vllm_config: Any) -> Any:
    from ascend_attention.vllm import register
    from ascend_attention.vllm.linear.bailing import AscendBailingMoELinearAttention
    from vllm.model_executor.layers.mamba.linear.bailing_linear_attn import (
        BailingMoELinearAttention,
    )

    register()
    layer = BailingMoELinearAttention(CONFIG, vllm_config, PREFIX)
    assert type(layer) is AscendBailingMoELinearAttention
    parameters = dict(layer.named_parameters())
    assert set(parameters) == set(SHAPES)
    for name, value in weights().items():
        parameter = parameters[name]
        load = getattr(parameter, "weight_loader", lambda own, given: own.data.copy_(given))
        load(parameter, value)
    for part in (layer.query_key_value, layer.g_proj, layer.dense):
        part.quant_method.process_weights_after_loading(part)
    return layer


def _steps(vllm_config: Any) -> None:
    """Three requests in random chunks, decodes and drafts, some of which are rejected."""
    from ascend_attention.vllm.linear.metadata import StepRequests, build_metadata
    from vllm.forward_context import set_forward_context

    layer = _layer(vllm_config)
    drafts, choose = 2, random.Random(5)
    new = torch.Generator().manual_seed(9)
    shape = (4 * (1 + drafts), HEADS // RANKS, DIM, DIM)
    layer.kv_cache = (torch.full(shape, float("nan")),)
    slots = torch.arange(1, 1 + 3 * (1 + drafts), dtype=torch.int32).view(3, -1)
    tokens = [torch.randn(n, HIDDEN, generator=new) for n in (150, 20, 90)]
    prompts, done, accepted = [130, 1, 70], [0] * 3, [1] * 3
    wanted = [definition(one) for one in tokens]
    while any(d < len(one) for d, one in zip(done, tokens, strict=True)):
        lengths, drafted, given, positions = [], [], [], []
        for r in range(3):
            left = prompts[r] - done[r]
            count = choose.randint(0, min(left, 80)) if left > 0 else 1 + drafts
            count = min(count, len(tokens[r]) - done[r])
            lengths.append(count)
            drafted.append(count - 1 if left <= 0 and count else -1)
            right = 1 + choose.randint(0, count - 1) if left <= 0 and count else count
            own = tokens[r][done[r] : done[r] + count].clone()
            # What is not accepted is another token.
            own[right:] = 7.0
            given.append(own)
            positions += range(done[r], done[r] + count)
        padding = choose.randint(0, 2)
        hidden = torch.cat([*given, torch.full((padding, HIDDEN), float("nan"))])
        meta = build_metadata(
            StepRequests(lengths, done, drafted),
            slots,
            torch.tensor(accepted, dtype=torch.int32),
        )
        output = torch.full_like(hidden, float("nan"))
        at = torch.tensor(positions + [0] * padding)
        if not sum(lengths):
            continue
        deferred = SimpleNamespace(get=lambda meta=meta: meta)
        with set_forward_context({PREFIX: deferred}, vllm_config):
            layer(hidden, output, at)
        assert output[sum(lengths) :].eq(0).all()
        first = 0
        for r, count in enumerate(lengths):
            kept = count
            if drafted[r] >= 0:
                kept = int((given[r] != 7.0).all(1).sum())
                accepted[r] = kept
            elif count:
                accepted[r] = 1
            expected = wanted[r][done[r] : done[r] + kept]
            assert_close(output[first : first + kept], expected, scale=5)
            done[r] += kept
            first += count


def _on(rank: int, folder: Path) -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state

    torch.set_num_threads(1)
    vllm_config: Any = VllmConfig()
    with set_current_vllm_config(vllm_config), torch.inference_mode():
        parallel_state.init_distributed_environment(
            RANKS, rank, f"file://{folder}/rendezvous", rank, "gloo"
        )
        parallel_state.initialize_model_parallel(RANKS)
        vllm_config.model_config = SimpleNamespace(dtype=torch.float32)
        text = "passed"
        try:
            _steps(vllm_config)
        except Exception:
            text = traceback.format_exc()
        (folder / f"report.{rank}").write_text(text)


def test_steps_equal_loops_on_two_ranks(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, __file__, str(rank), str(tmp_path)])
        for rank in range(RANKS)
    ]
    for process in processes:
        process.wait(300)
    for rank in range(RANKS):
        assert (tmp_path / f"report.{rank}").read_text() == "passed"


if __name__ == "__main__":
    _on(int(sys.argv[1]), Path(sys.argv[2]))
