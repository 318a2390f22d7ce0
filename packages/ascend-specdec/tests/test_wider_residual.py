"""The layer with a wider residual against its definition, chunk by chunk, in float64."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_specdec.layers.wider_residual import WiderResidualLayer
from torch import nn

WIDTH, EPS = 12, 1e-6


class Attention(nn.Module):
    """Stands for attention: mixes tokens, and depends on positions."""

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states.cumsum(0) * (1 + positions[:, None].to(hidden_states.dtype))


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def by_chunk(x: torch.Tensor, matrix: torch.Tensor, chunks: int) -> torch.Tensor:
    parts = x.unflatten(1, (chunks, x.shape[1] // chunks))
    return torch.einsum("tmi,oi->tmo", parts, matrix).flatten(1)


@pytest.mark.parametrize("tokens", [0, 1, 5])
@pytest.mark.parametrize(("chunks", "wider"), [(1, 12), (2, 18), (4, 36), (3, 12)])
def test_the_layer_is_its_definition(tokens: int, chunks: int, wider: int) -> None:
    torch.manual_seed(chunks)
    layer = WiderResidualLayer(WIDTH, wider, chunks, EPS, Attention(), nn.SiLU())
    for p in layer.parameters():
        nn.init.normal_(p)
    layer.double()
    e, h = torch.randn(2, tokens, WIDTH, dtype=torch.float64)
    positions = torch.arange(tokens)
    got = layer(positions, e, h)

    w = {name: p.detach() for name, p in layer.named_parameters()}

    def chunked(x: torch.Tensor, name: str) -> torch.Tensor:
        return by_chunk(x, w[f"{name}.weight"], chunks)

    entry = "pre_vwn_layer"
    both = torch.cat(
        [
            normed(e, w[f"{entry}.input_layernorm.weight"]),
            normed(h, w[f"{entry}.hidden_norm.weight"]),
        ],
        dim=-1,
    )
    wide = chunked(both @ w[f"{entry}.fc.weight"].T, f"{entry}.upward")
    x = chunked(wide, "downward_and_forgot")
    a, rest = x[:, :WIDTH], x[:, WIDTH:]
    a = Attention()(positions, normed(a, w["pre_attention_layernorm.weight"]))
    wide = chunked(a, "upward_after_attn") + rest
    x = chunked(wide, "downward_and_forgot_after_attn")
    b, rest = x[:, :WIDTH], x[:, WIDTH:]
    b = torch.nn.functional.silu(normed(b, w["post_attention_layernorm.weight"]))
    wide = chunked(b, "upward_after_mlp") + rest
    expected = chunked(wide, "downward")
    # Norms are computed in float32 by the operator.
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert got.shape == (tokens, WIDTH)


def test_chunks_that_do_not_divide_are_refused() -> None:
    for chunks, wider in ((5, 15), (4, 18), (0, 12)):
        with pytest.raises(InvalidInputError, match=f"vwn_m={chunks}"):
            WiderResidualLayer(WIDTH, wider, chunks, EPS, Attention(), nn.SiLU())
