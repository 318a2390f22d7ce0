"""Window, compressed and indexed attention of DeepSeek-V4 as dense, differentiable tensor code.

Shapes: B batch, S tokens, H heads, D head size, T compressed entries, W sliding window.
Only training uses this; it has no cache and sees every sequence from its first token.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from tools.tiny_model.config import TinyConfig, rope_table

HIDDEN = -1e9


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension with a learned float32 gain."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise ``x`` [..., size]."""
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def linear(inputs: int, outputs: int, gain: float = 1.0) -> nn.Linear:
    """A bias-free linear map, initialised to keep the variance times ``gain`` squared."""
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=gain / math.sqrt(inputs))
    return layer


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the last ``2 * cos.shape[-1]`` channels of ``x`` in neighbouring pairs.

    ``cos`` and ``sin`` must broadcast against ``x[..., :pairs]``.
    """
    pairs = cos.shape[-1]
    plain, turned = x[..., : -2 * pairs], x[..., -2 * pairs :]
    even, odd = turned[..., 0::2], turned[..., 1::2]
    rotated = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1)
    return torch.cat((plain, rotated.flatten(-2)), dim=-1)


class Compressor(nn.Module):
    """Gated pooling of every ``ratio`` tokens into one entry; ratio 4 overlaps two windows."""

    def __init__(self, cfg: TinyConfig, ratio: int, head_dim: int) -> None:
        super().__init__()
        self.cfg, self.ratio, self.head_dim = cfg, ratio, head_dim
        width = head_dim * (2 if ratio == 4 else 1)
        self.wkv = linear(cfg.hidden_size, width)
        self.wgate = linear(cfg.hidden_size, width)
        self.ape = nn.Parameter(torch.zeros(ratio, width))
        self.norm = RMSNorm(head_dim, cfg.rms_norm_eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compress ``x`` [B, S, hidden] into [B, S // ratio, head_dim], rotated."""
        b, s, _ = x.shape
        n, d = s // self.ratio, self.head_dim
        x = x[:, : n * self.ratio]
        kv = self.wkv(x).view(b, n, self.ratio, -1)
        gate = self.wgate(x).view(b, n, self.ratio, -1) + self.ape
        if self.ratio == 4:
            kv = torch.cat((F.pad(kv[:, :-1, :, :d], (0, 0, 0, 0, 1, 0)), kv[..., d:]), dim=2)
            before = F.pad(gate[:, :-1, :, :d], (0, 0, 0, 0, 1, 0), value=-math.inf)
            gate = torch.cat((before, gate[..., d:]), dim=2)
        pooled = self.norm((kv * gate.softmax(dim=2)).sum(dim=2))
        return rotate(pooled, *rope_table(self.cfg, n, compress=True, stride=self.ratio))


class Indexer(nn.Module):
    """Scores every compressed entry for every query with a few small heads."""

    def __init__(self, cfg: TinyConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.wq_b = linear(cfg.q_lora_rank, cfg.index_n_heads * cfg.index_head_dim)
        self.weights_proj = linear(cfg.hidden_size, cfg.index_n_heads)
        self.compressor = Compressor(cfg, 4, cfg.index_head_dim)

    def forward(self, x: torch.Tensor, q_low: torch.Tensor) -> torch.Tensor:
        """Scores [B, S, T] from hidden states [B, S, hidden] and low-rank queries [B, S, rank]."""
        cfg = self.cfg
        b, s, _ = x.shape
        cos, sin = rope_table(cfg, s, compress=True)
        q = self.wq_b(q_low).view(b, s, cfg.index_n_heads, cfg.index_head_dim)
        q = rotate(q, cos[:, None], sin[:, None])
        keys = self.compressor(x)
        hits = torch.matmul(q.flatten(1, 2), keys.transpose(1, 2))
        hits = F.relu(hits).view(b, s, cfg.index_n_heads, -1)
        weights = self.weights_proj(x) * (cfg.index_head_dim * cfg.index_n_heads) ** -0.5
        return torch.matmul(weights.unsqueeze(2), hits).squeeze(2)


def window_mask(chunks: int, window: int) -> torch.Tensor:
    """Additive mask [chunks, W, 1, 2W]: a query sees itself and the W - 1 tokens before it."""
    query = torch.arange(window)[:, None] + window
    key = torch.arange(2 * window)[None]
    seen = (key <= query) & (key > query - window)
    seen = seen.repeat(chunks, 1, 1)
    seen[0, :, :window] = False
    return torch.where(seen, 0.0, HIDDEN)[:, :, None]


class Attention(nn.Module):
    """One attention block: sliding window plus, by compress ratio, pooled older entries.

    After a forward pass with a 4-to-1 compressor in training, ``index_loss`` holds the divergence
    of the indexer's distribution from the attention that it should predict.
    """

    def __init__(self, cfg: TinyConfig, ratio: int) -> None:
        super().__init__()
        self.cfg, self.ratio = cfg, ratio
        heads = cfg.num_attention_heads * cfg.head_dim
        self.wq_a = linear(cfg.hidden_size, cfg.q_lora_rank)
        self.q_norm = RMSNorm(cfg.q_lora_rank, cfg.rms_norm_eps)
        self.wq_b = linear(cfg.q_lora_rank, heads)
        self.wkv = linear(cfg.hidden_size, cfg.head_dim)
        self.kv_norm = RMSNorm(cfg.head_dim, cfg.rms_norm_eps)
        self.wo_a = linear(heads // cfg.o_groups, cfg.o_groups * cfg.o_lora_rank)
        self.wo_b = linear(
            cfg.o_groups * cfg.o_lora_rank, cfg.hidden_size, (2 * cfg.num_hidden_layers) ** -0.5
        )
        self.attn_sink = nn.Parameter(torch.zeros(cfg.num_attention_heads))
        if ratio:
            self.compressor = Compressor(cfg, ratio, cfg.head_dim)
        if ratio == 4:
            self.indexer = Indexer(cfg)
        self.select = True
        self.index_loss: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend over ``x`` [B, S, hidden]; returns [B, S, hidden]."""
        cfg = self.cfg
        b, s, _ = x.shape
        cos, sin = rope_table(cfg, s, compress=self.ratio > 0)
        q_low = self.q_norm(self.wq_a(x))
        q = self.wq_b(q_low).view(b, s, cfg.num_attention_heads, cfg.head_dim)
        q = F.rms_norm(q, (cfg.head_dim,), eps=cfg.rms_norm_eps)
        q = rotate(q, cos[:, None], sin[:, None])
        kv = rotate(self.kv_norm(self.wkv(x)), cos, sin)
        out = self._attend(q, kv, x, q_low)
        out = rotate(out, cos[:, None], -sin[:, None])
        groups = out.reshape(b, s, cfg.o_groups, -1)
        low = torch.einsum("bsgi,goi->bsgo", groups, self._grouped_wo_a())
        return self.wo_b(low.flatten(2))

    def _grouped_wo_a(self) -> torch.Tensor:
        return self.wo_a.weight.view(self.cfg.o_groups, self.cfg.o_lora_rank, -1)

    def _attend(
        self, q: torch.Tensor, kv: torch.Tensor, x: torch.Tensor, q_low: torch.Tensor
    ) -> torch.Tensor:
        b, s, h, d = q.shape
        w = self.cfg.sliding_window
        chunks = -(-s // w)
        padded = chunks * w
        q = F.pad(q * d**-0.5, (0, 0, 0, 0, 0, padded - s))
        own = F.pad(kv, (0, 0, 0, padded - s)).view(b, chunks, w, d)
        before = F.pad(own[:, :-1], (0, 0, 0, 0, 1, 0))
        near = torch.cat((before, own), dim=2)
        q_chunks = q.view(b, chunks, w * h, d)
        scores = torch.matmul(q_chunks, near.transpose(2, 3)).view(b, chunks, w, h, 2 * w)
        scores = (scores + window_mask(chunks, w)).view(b, padded, h, 2 * w)
        sink = self.attn_sink.view(1, 1, h, 1).expand(b, padded, h, 1)
        if not self.ratio or s < self.ratio:
            p_near = torch.cat((scores, sink), dim=-1).softmax(dim=-1)[..., :-1]
            out = torch.matmul(p_near.reshape(b, chunks, w * h, 2 * w), near)
            return out.view(b, padded, h, d)[:, :s]

        far = self.compressor(x)
        t = far.shape[1]
        far_scores = torch.matmul(q.flatten(1, 2), far.transpose(1, 2)).view(b, padded, h, t)
        ready = (torch.arange(padded) + 1) // self.ratio
        visible = torch.arange(t)[None] < ready[:, None]
        far_scores = far_scores.masked_fill(~visible[None, :, None], HIDDEN)
        masked = far_scores
        index_scores = None
        if self.ratio == 4:
            index_scores = self.indexer(x.detach(), q_low.detach())
            index_scores = F.pad(index_scores, (0, 0, 0, padded - s))
            index_scores = index_scores.masked_fill(~visible, HIDDEN)
            if self.select and t > self.cfg.index_topk:
                chosen = index_scores.detach().topk(self.cfg.index_topk, dim=-1).indices
                keep = torch.zeros(b, padded, t, dtype=torch.bool).scatter_(-1, chosen, True)
                masked = far_scores.masked_fill(~(keep & visible).unsqueeze(2), HIDDEN)
        p = torch.cat((scores, masked, sink), dim=-1).softmax(dim=-1)
        p_near, p_far, _ = p.split([2 * w, t, 1], dim=-1)
        if index_scores is not None and self.training:
            self.index_loss = index_divergence(
                index_scores[:, :s], far_scores.detach()[:, :s], p_far.detach()[:, :s], visible[:s]
            )
        out = torch.matmul(p_near.reshape(b, chunks, w * h, 2 * w), near).view(b, padded, h, d)
        out = out + torch.matmul(p_far.reshape(b, padded * h, t), far).view(b, padded, h, d)
        return out[:, :s]


def index_divergence(
    index_scores: torch.Tensor, scores: torch.Tensor, p: torch.Tensor, visible: torch.Tensor
) -> torch.Tensor:
    """KL divergence of the indexer's softmax from the heads' attention over compressed entries.

    Args:
        index_scores: [B, S, T], with the gradient.
        scores: [B, S, H, T] attention scores of all visible entries, chosen or not.
        p: [B, S, H, T] attention probabilities; a head counts by the mass it gives these entries.
        visible: [S, T] bool.

    Returns:
        The mean over queries that see more than one entry, a scalar.
    """
    mass = p.sum(-1, keepdim=True) + 1e-6
    target = (scores.softmax(-1) * mass).sum(2) / mass.sum(2)
    gap = torch.special.xlogy(target, target) - target * index_scores.log_softmax(-1)
    rows = visible.sum(-1) > 1
    return gap.masked_fill(~visible, 0.0).sum(-1)[:, rows].mean()
