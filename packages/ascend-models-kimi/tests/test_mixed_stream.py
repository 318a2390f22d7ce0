"""Kimi-K3's residual stream against a list of sources for every layer."""

from __future__ import annotations

import pytest
import torch
from ascend_models_kimi.kimi_k3.decoder_layer import AscendKimiDecoderLayer, MixedStream
from ascend_ops_core.layers.attention_residual import AttentionResidual
from ascend_ops_core.testing.tolerances import assert_close
from torch import nn

HIDDEN, TOKENS, EPS = 12, 5, 1e-5


class Layer(AscendKimiDecoderLayer):
    """A layer whose blocks are products with a matrix, built without an engine."""

    def __init__(self, number: int, block: int) -> None:
        nn.Module.__init__(self)
        self.block, offset = divmod(number, block)
        self.begins = offset == 0
        self.norm_eps = EPS
        self.input_layernorm = 1 + torch.randn(HIDDEN) / 4
        self.post_attention_layernorm = 1 + torch.randn(HIDDEN) / 4
        self.self_attention_res, self.mlp_res = residual(), residual()
        self.attention, self.mlp = (torch.randn(HIDDEN, HIDDEN) / HIDDEN**0.5 for _ in range(2))

    @property
    def ffn(self) -> nn.Module:
        made = nn.Linear(HIDDEN, HIDDEN, bias=False)
        made.weight.data = self.mlp
        return made

    def attend(self, normed: torch.Tensor) -> torch.Tensor:
        return normed @ self.attention.T


def residual() -> AttentionResidual:
    made = AttentionResidual(HIDDEN, EPS, torch.float32)
    made.norm.data = 1 + torch.randn(HIDDEN) / 4
    made.proj.data = torch.randn(HIDDEN)
    return made


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight.double() * x / (x.square().mean(-1, keepdim=True) + EPS).sqrt()


def mixture(sources: list[torch.Tensor], mix: AttentionResidual) -> torch.Tensor:
    """Softmax over sources of what each scores for itself."""
    scores = [normed(s, mix.norm) @ mix.proj.double() for s in sources]
    weights = torch.stack(scores).softmax(0)
    return sum(w[:, None] * s for w, s in zip(weights, sources, strict=True))


def definition(
    layers: list[Layer], block: int, embedded: torch.Tensor, output: AttentionResidual
) -> torch.Tensor:
    finished: list[torch.Tensor] = []
    running = embedded.double()
    for number, layer in enumerate(layers):
        mixed = mixture([*finished, running], layer.self_attention_res)
        attended = normed(mixed, layer.input_layernorm) @ layer.attention.double().T
        if number % block == 0:
            finished.append(running)
            running = attended
        else:
            running = running + attended
        mixed = mixture([*finished, running], layer.mlp_res)
        running = running + normed(mixed, layer.post_attention_layernorm) @ layer.mlp.double().T
    return mixture([*finished, running], output)


@pytest.mark.parametrize(("layers", "block"), [(1, 1), (4, 1), (5, 2), (4, 3), (3, 8)])
def test_layers_read_mixtures_of_all_sums(layers: int, block: int) -> None:
    torch.manual_seed(layers)
    made, output = [Layer(i, block) for i in range(layers)], residual()
    embedded = torch.randn(TOKENS, HIDDEN)
    kept = embedded.clone()
    stream = MixedStream.begin(embedded, layers, block)
    stream.sums.fill_(float("nan"))
    for layer in made:
        stream = layer(stream)
    found = stream.mixed(output, len(stream.sums))[0]
    assert_close(found, definition(made, block, kept, output))
    assert torch.equal(embedded, kept)
