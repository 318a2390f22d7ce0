"""A small DeepSeek-V4 for training: dense, batched and differentiable, without caches.

Module names are the tensor names of original checkpoints, except that the experts of a layer are
packed; :mod:`tools.tiny_model.checkpoint` unpacks them.

Shapes: B batch, S tokens, M residual streams, D hidden size, E experts, K experts per token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from tools.tiny_model import hyper
from tools.tiny_model.attention import Attention, RMSNorm, linear
from tools.tiny_model.config import TinyConfig


class SharedExpert(nn.Module):
    """The SwiGLU block that every token passes."""

    def __init__(self, cfg: TinyConfig) -> None:
        super().__init__()
        self.limit = cfg.swiglu_limit
        depth_gain = (2 * cfg.num_hidden_layers) ** -0.5
        self.w1 = linear(cfg.hidden_size, cfg.moe_intermediate_size)
        self.w2 = linear(cfg.moe_intermediate_size, cfg.hidden_size, depth_gain)
        self.w3 = linear(cfg.hidden_size, cfg.moe_intermediate_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``x`` [N, D] to [N, D]."""
        return self.w2(swiglu(self.w1(x), self.w3(x), self.limit))


def swiglu(gate: torch.Tensor, up: torch.Tensor, limit: float) -> torch.Tensor:
    """SiLU gate with both inputs clipped: gate from above, up on both sides."""
    return F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


class Gate(nn.Module):
    """Chooses experts: by a table of token ids (hash layers) or by score plus balancing bias."""

    tid2eid: torch.Tensor
    bias: torch.Tensor

    def __init__(self, cfg: TinyConfig, hashed: bool) -> None:
        super().__init__()
        self.cfg, self.hashed = cfg, hashed
        self.weight = nn.Parameter(
            torch.randn(cfg.n_routed_experts, cfg.hidden_size) * cfg.hidden_size**-0.5
        )
        if hashed:
            table = torch.zeros(cfg.vocab_size, cfg.num_experts_per_tok, dtype=torch.long)
            self.register_buffer("tid2eid", table)
        else:
            self.register_buffer("bias", torch.zeros(cfg.n_routed_experts))

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and expert ids, both [N, K], for ``x`` [N, D] and token ``ids`` [N]."""
        scores = F.softplus(F.linear(x, self.weight)).sqrt()
        if self.hashed:
            chosen = self.tid2eid[ids]
        else:
            chosen = (scores.detach() + self.bias).topk(self.cfg.num_experts_per_tok).indices
        weights = scores.gather(1, chosen)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * self.cfg.routed_scaling_factor, chosen


class MoE(nn.Module):
    """Routed experts and one shared expert; ``load`` is the last share of choices [E]."""

    def __init__(self, cfg: TinyConfig, hashed: bool) -> None:
        super().__init__()
        self.cfg = cfg
        e, d, i = cfg.n_routed_experts, cfg.hidden_size, cfg.moe_intermediate_size
        self.gate = Gate(cfg, hashed)
        self.experts_w13 = nn.Parameter(torch.randn(e, 2 * i, d) * d**-0.5)
        self.experts_w2 = nn.Parameter(
            torch.randn(e, d, i) * (i * 2 * cfg.num_hidden_layers) ** -0.5
        )
        self.shared_experts = SharedExpert(cfg)
        self.load = torch.zeros(e)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Map ``x`` [N, D] to [N, D]; ``ids`` [N] are the tokens, for hash layers."""
        weights, chosen = self.gate(x, ids)
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        counts = flat.bincount(minlength=self.cfg.n_routed_experts)
        self.load = counts / flat.numel()
        tokens = order // self.cfg.num_experts_per_tok
        parts = []
        for expert, rows in enumerate(x[tokens].split(counts.tolist())):
            hidden = F.linear(rows, self.experts_w13[expert])
            gate, up = hidden.chunk(2, dim=-1)
            hidden = swiglu(gate, up, self.cfg.swiglu_limit)
            parts.append(F.linear(hidden, self.experts_w2[expert]))
        routed = torch.cat(parts) * weights.flatten()[order, None]
        return self.shared_experts(x).index_add(0, tokens, routed)


class Block(nn.Module):
    """A decoder block between two hyper-connections."""

    def __init__(self, cfg: TinyConfig, ratio: int, hashed: bool) -> None:
        super().__init__()
        self.cfg = cfg
        m, d = cfg.hc_mult, cfg.hidden_size
        self.attn_norm = RMSNorm(d, cfg.rms_norm_eps)
        self.attn = Attention(cfg, ratio)
        self.ffn_norm = RMSNorm(d, cfg.rms_norm_eps)
        self.ffn = MoE(cfg, hashed)
        self.hc_attn_fn, self.hc_attn_base, self.hc_attn_scale = _connection(m, d)
        self.hc_ffn_fn, self.hc_ffn_base, self.hc_ffn_scale = _connection(m, d)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Streams [B, S, M, D] and tokens [B, S] to streams [B, S, M, D]."""
        pre, post, comb = hyper.mix_weights(
            x, self.hc_attn_fn, self.hc_attn_base, self.hc_attn_scale, self.cfg
        )
        y = self.attn(self.attn_norm(hyper.collapse(x, pre)))
        x = hyper.expand(x, y, post, comb)
        pre, post, comb = hyper.mix_weights(
            x, self.hc_ffn_fn, self.hc_ffn_base, self.hc_ffn_scale, self.cfg
        )
        y = self.ffn_norm(hyper.collapse(x, pre))
        y = self.ffn(y.flatten(0, 1), ids.flatten()).view_as(y)
        return hyper.expand(x, y, post, comb)


def _connection(m: int, d: int) -> tuple[nn.Parameter, nn.Parameter, nn.Parameter]:
    """``fn``, ``base`` and ``scale`` of one hyper-connection."""
    fn = torch.randn(2 * m + m * m, m * d) * (m * d) ** -0.5
    return nn.Parameter(fn), nn.Parameter(_initial_base(m)), nn.Parameter(torch.full((3,), 0.3))


def _initial_base(m: int) -> torch.Tensor:
    """Start as a plain residual: collapse to the mean, add to every stream, mix little."""
    collapse = torch.full((m,), -math.log(m - 1)) if m > 1 else torch.full((1,), 10.0)
    return torch.cat((collapse, torch.zeros(m), (4.0 * torch.eye(m)).flatten()))


class StreamHead(nn.Module):
    """What stands between the last block and the logits: ``hc_head_*`` and ``norm``."""

    cfg: TinyConfig

    def add_stream_head(self, cfg: TinyConfig) -> None:
        """Create the parameters; a constructor calls it once."""
        m, d = cfg.hc_mult, cfg.hidden_size
        self.norm = RMSNorm(d, cfg.rms_norm_eps)
        self.hc_head_fn = nn.Parameter(torch.randn(m, m * d) * (m * d) ** -0.5)
        self.hc_head_base = nn.Parameter(_initial_base(m)[:m].clone())
        self.hc_head_scale = nn.Parameter(torch.full((1,), 0.3))

    def pool(self, x: torch.Tensor) -> torch.Tensor:
        """Streams [B, S, M, D] to normalised hidden states [B, S, D]."""
        pre = hyper.head_weights(
            x, self.hc_head_fn, self.hc_head_base, self.hc_head_scale, self.cfg
        )
        return self.norm(hyper.collapse(x, pre))


class MTP(Block, StreamHead):
    """Multi-token prediction: from token t's streams and token t+1, predicts token t+2."""

    def __init__(self, cfg: TinyConfig) -> None:
        super().__init__(cfg, ratio=0, hashed=False)
        d = cfg.hidden_size
        self.enorm = RMSNorm(d, cfg.rms_norm_eps)
        self.hnorm = RMSNorm(d, cfg.rms_norm_eps)
        self.e_proj = linear(d, d)
        self.h_proj = linear(d, d)
        self.add_stream_head(cfg)

    def draft(
        self, streams: torch.Tensor, embedded: torch.Tensor, ids: torch.Tensor
    ) -> torch.Tensor:
        """Run the layer on streams [B, S, M, D] and the embeddings [B, S, D] of the next tokens.

        The embedding at position 0 is left out, as serving engines do.  Returns streams, which a
        second draft step may take in place of the target's.
        """
        first = torch.arange(embedded.shape[1]) == 0
        embedded = embedded.masked_fill(first[:, None], 0.0)
        x = self.h_proj(self.hnorm(streams)) + self.e_proj(self.enorm(embedded)).unsqueeze(2)
        return self(x, ids)


@dataclass
class Output:
    """Logits of one pass: ``main`` [B, S, V]; ``mtp`` [B, S - 1, V], row t predicting t + 2."""

    main: torch.Tensor
    mtp: torch.Tensor


class TinyDeepseekV4(StreamHead):
    """The whole model: embedding, blocks, head, and the MTP layer that shares both ends."""

    def __init__(self, cfg: TinyConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.add_stream_head(cfg)
        n = cfg.num_hidden_layers
        self.embed = nn.Embedding(cfg.vocab_size, cfg.hidden_size)
        self.layers = nn.ModuleList(
            Block(cfg, ratio, hashed=i < cfg.num_hash_layers)
            for i, ratio in enumerate(cfg.compress_ratios[:n])
        )
        self.head = linear(cfg.hidden_size, cfg.vocab_size, 0.5)
        self.mtp = nn.ModuleList(MTP(cfg) for _ in range(cfg.num_nextn_predict_layers))
        nn.init.normal_(self.embed.weight, std=0.5)

    def trunk(self, ids: torch.Tensor) -> torch.Tensor:
        """Streams [B, S, M, D] after the last decoder block for tokens ``ids`` [B, S]."""
        x = self.embed(ids).unsqueeze(2).expand(-1, -1, self.cfg.hc_mult, -1).contiguous()
        for layer in self.layers:
            x = layer(x, ids)
        return x

    def forward(self, ids: torch.Tensor) -> Output:
        """Logits of the model and of its first MTP layer for tokens ``ids`` [B, S]."""
        x = self.trunk(ids)
        main = self.head(self.pool(x))
        if ids.shape[1] == 1:
            return Output(main, main[:, :0])
        layer = cast(MTP, self.mtp[0])
        following = ids[:, 1:]
        drafted = layer.draft(x[:, :-1], self.embed(following), following)
        return Output(main, self.head(layer.pool(drafted)))

    def attentions(self) -> list[Attention]:
        """The attention blocks of the decoder layers."""
        return [cast(Block, layer).attn for layer in self.layers]

    def moes(self) -> list[MoE]:
        """All mixture-of-experts blocks, the MTP layer's last."""
        return [cast(Block, layer).ffn for layer in (*self.layers, *self.mtp)]
