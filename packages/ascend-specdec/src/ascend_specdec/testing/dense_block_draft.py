"""DFlash, DFlash2 and DSpark with a Qwen3 backbone, without caches, operators or vLLM.

Shapes: ``B`` sequences of ``T`` tokens; ``N`` blocks in each, of ``Q`` rows; ``H`` channels.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["DenseBlockDraft", "DenseDraftConfig"]


@dataclass(frozen=True)
class DenseDraftConfig:
    """Shape of a draft. ``kind`` is ``"dflash"``, ``"dflash2"`` or ``"dspark"``."""

    kind: str
    target_layers: tuple[int, ...]
    hidden_size: int = 64
    target_hidden_size: int = 64
    intermediate_size: int = 96
    layers: int = 2
    heads: int = 4
    key_heads: int = 2
    head_dim: int = 16
    vocab_size: int = 300
    mask_token: int = 2
    rope_theta: float = 10000.0
    from_anchor: bool | None = None
    taps: int = 3
    group: int = 16
    rank: int = 16
    candidates: int = 4
    input_scale: float = 1.0
    output_scale: float = 1.0
    softcap: float | None = None
    markov_rank: int = 16
    logit_scale: float = 1.0
    confidence: bool = True

    @property
    def anchored(self) -> bool:
        """Whether the anchor's own row predicts the first draft."""
        return self.kind == "dspark" if self.from_anchor is None else self.from_anchor

    def queries(self, drafts: int) -> int:
        """Rows of a block of so many drafts."""
        return drafts if self.anchored else drafts + 1

    def to_json(self) -> dict[str, Any]:
        """``config.json`` of the checkpoint."""
        names = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel"}
        common = {
            "architectures": [names.get(self.kind, "Qwen3DSparkModel")],
            "model_type": "qwen3",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "attention_bias": False,
            "tie_word_embeddings": False,
            "target_hidden_size": self.target_hidden_size,
        }
        draft: dict[str, Any] = {
            "mask_token_id": self.mask_token,
            "target_layer_ids": list(self.target_layers),
            "sample_from_anchor": self.anchored,
        }
        if self.kind == "dspark":
            return (
                common
                | draft
                | {
                    "markov_rank": self.markov_rank,
                    "logit_scale": self.logit_scale,
                    "enable_confidence_head": self.confidence,
                }
            )
        if self.kind == "dflash2":
            draft |= {
                "conv_kernel_size": self.taps,
                "conv_group_size": self.group,
                "selector_rank": self.rank,
                "selector_top_k": self.candidates,
                "input_embedding_scale": self.input_scale,
                "output_multiplier": self.output_scale,
                "final_logit_softcapping": self.softcap,
            }
        return common | {"dflash_config": draft}


class _Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class _Conv(nn.Module):
    """Both sides of the convolution around a sublayer, row by row of a block."""

    def __init__(self, config: DenseDraftConfig) -> None:
        super().__init__()
        width, taps = config.hidden_size, config.taps
        self.groups = width // config.group
        base = torch.zeros(2, taps, width)
        base[:, 0] = 1
        self.base_kernel = nn.Parameter(base)
        self.kernel_projection = nn.Linear(width, 2 * taps * self.groups, bias=False)
        nn.init.zeros_(self.kernel_projection.weight)

    def coefficients(self, x: torch.Tensor) -> torch.Tensor:
        """``[B, N, Q, 2, taps, H]``."""
        taps = self.base_kernel.shape[1]
        delta = self.kernel_projection(x).unflatten(-1, (2, taps, self.groups))
        wide = delta.repeat_interleave(x.shape[-1] // self.groups, dim=-1)
        return self.base_kernel + wide

    @staticmethod
    def apply_side(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """``x [B, N, Q, H]`` with ``weights [B, N, Q, taps, H]``."""
        rows = x.shape[2]
        out = torch.zeros_like(x)
        for tap in range(min(weights.shape[3], rows)):
            shifted = F.pad(x, (0, 0, tap, 0))[:, :, :rows]
            out = out + weights[:, :, :, tap] * shifted
        return out


class _Attention(nn.Module):
    def __init__(self, config: DenseDraftConfig) -> None:
        super().__init__()
        self.config = config
        width, head = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(width, config.heads * head, bias=False)
        self.k_proj = nn.Linear(width, config.key_heads * head, bias=False)
        self.v_proj = nn.Linear(width, config.key_heads * head, bias=False)
        self.o_proj = nn.Linear(config.heads * head, width, bias=False)
        self.q_norm, self.k_norm = _Norm(head), _Norm(head)

    def rotated(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Heads ``[..., heads, D]`` at positions ``[...]``, halves of a head paired."""
        half = self.config.head_dim // 2
        frequency = self.config.rope_theta ** -(torch.arange(half) / half)
        angle = positions[..., None, None] * frequency
        a, b = x[..., :half], x[..., half:]
        return torch.cat(
            [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], dim=-1
        )

    def keys(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values ``[..., key_heads, D]`` of rows ``[..., H]``."""
        shape = (self.config.key_heads, self.config.head_dim)
        key = self.rotated(self.k_norm(self.k_proj(x).unflatten(-1, shape)), positions)
        return key, self.v_proj(x).unflatten(-1, shape)

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, context: torch.Tensor, starts: torch.Tensor
    ) -> torch.Tensor:
        """``[B, N, Q, H]``: a block's rows see the context in front of it, and each other."""
        config = self.config
        query = self.q_norm(self.q_proj(x).unflatten(-1, (config.heads, config.head_dim)))
        query = self.rotated(query, positions)
        share = config.heads // config.key_heads
        places = torch.arange(context.shape[1]).expand(context.shape[:2])
        key, value = (t.repeat_interleave(share, -2) for t in self.keys(context, places))
        own_key, own_value = (t.repeat_interleave(share, -2) for t in self.keys(x, positions))
        far = torch.einsum("bnqhd,bthd->bnhqt", query, key)
        seen = places[:, None] < starts[:, :, None]
        far = far.masked_fill(~seen[:, :, None, None], float("-inf"))
        near = torch.einsum("bnqhd,bnkhd->bnhqk", query, own_key)
        weights = (torch.cat([far, near], dim=-1) / math.sqrt(config.head_dim)).softmax(-1)
        count = context.shape[1]
        out = torch.einsum("bnhqt,bthd->bnqhd", weights[..., :count], value)
        out = out + torch.einsum("bnhqk,bnkhd->bnqhd", weights[..., count:], own_value)
        return self.o_proj(out.flatten(-2))


class _Mlp(nn.Module):
    def __init__(self, config: DenseDraftConfig) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class _Layer(nn.Module):
    def __init__(self, config: DenseDraftConfig) -> None:
        super().__init__()
        self.self_attn, self.mlp = _Attention(config), _Mlp(config)
        self.input_layernorm = _Norm(config.hidden_size)
        self.post_attention_layernorm = _Norm(config.hidden_size)
        self.convolved = config.kind == "dflash2"
        if self.convolved:
            self.attention_conv, self.mlp_conv = _Conv(config), _Conv(config)

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, context: torch.Tensor, starts: torch.Tensor
    ) -> torch.Tensor:
        normed = self.input_layernorm(x)
        if not self.convolved:
            x = x + self.self_attn(normed, positions, context, starts)
            return x + self.mlp(self.post_attention_layernorm(x))
        weights = self.attention_conv.coefficients(normed)
        read = _Conv.apply_side(normed, weights[:, :, :, 0])
        out = self.self_attn(read, positions, context, starts)
        x = x + _Conv.apply_side(out, weights[:, :, :, 1])
        normed = self.post_attention_layernorm(x)
        weights = self.mlp_conv.coefficients(normed)
        out = self.mlp(_Conv.apply_side(normed, weights[:, :, :, 0]))
        return x + _Conv.apply_side(out, weights[:, :, :, 1])


class _Selector(nn.Module):
    def __init__(self, config: DenseDraftConfig) -> None:
        super().__init__()
        self.predecessor_codebook = nn.Embedding(config.vocab_size, config.rank)
        self.successor_codebook = nn.Embedding(config.vocab_size, config.rank)
        self.hidden_projection = nn.Linear(config.hidden_size, config.rank, bias=False)


class _Markov(nn.Module):
    def __init__(self, config: DenseDraftConfig) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(config.vocab_size, config.markov_rank)
        self.markov_w2 = nn.Linear(config.markov_rank, config.vocab_size, bias=False)


class _Confidence(nn.Module):
    def __init__(self, config: DenseDraftConfig) -> None:
        super().__init__()
        self.proj = nn.Linear(config.hidden_size + config.markov_rank, 1)


class DenseBlockDraft(nn.Module):
    """A draft whose parameters have the names of its checkpoint.

    Embedding and head are the target's, and are given with every call.
    """

    def __init__(self, config: DenseDraftConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.fc = nn.Linear(
            config.target_hidden_size * len(config.target_layers), width, bias=False
        )
        self.hidden_norm, self.norm = _Norm(width), _Norm(width)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.layers))
        if config.kind == "dflash2":
            self.candidate_selector = _Selector(config)
        if config.kind == "dspark":
            self.markov_head = _Markov(config)
            if config.confidence:
                self.confidence_head = _Confidence(config)

    def hidden(
        self,
        aux: torch.Tensor,
        anchors: torch.Tensor,
        starts: torch.Tensor,
        drafts: int,
        embedding: torch.Tensor,
    ) -> torch.Tensor:
        """Normed states ``[B, N, K, H]`` of the rows that predict.

        Args:
            aux: ``[B, T, m * H]`` hidden states of the target.
            anchors: ``[B, N]`` tokens in front of the drafts.
            starts: ``[B, N]`` their positions; a block sees the context in front of its anchor.
            drafts: ``K``.
            embedding: ``[V, H]``.
        """
        queries = self.config.queries(drafts)
        context = self.hidden_norm(self.fc(aux))
        tokens = anchors.unsqueeze(-1).repeat(1, 1, queries)
        tokens[..., 1:] = self.config.mask_token
        x = embedding[tokens] * self.config.input_scale
        positions = starts.unsqueeze(-1) + torch.arange(queries)
        for layer in self.layers:
            x = layer(x, positions, context, starts)
        return self.norm(x)[:, :, queries - drafts :]

    def markov(self, base: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Logits ``[..., V]`` of a place behind ``tokens [...]``."""
        head = self.markov_head
        return base + self.config.logit_scale * head.markov_w2(head.markov_w1(tokens))

    def scores(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Candidates ``[..., k]`` and their own scores."""
        best, tokens = logits.topk(self.config.candidates, dim=-1)
        best = best * self.config.output_scale
        cap = self.config.softcap
        return tokens, best if cap is None else cap * (best / cap).tanh()

    def edge(
        self, hidden: torch.Tensor, before: torch.Tensor, candidates: torch.Tensor
    ) -> torch.Tensor:
        """What the edge from a token ``[...]`` adds to each candidate ``[..., k]``."""
        head = self.candidate_selector
        source = head.predecessor_codebook(before) * head.hidden_projection(hidden)
        return (source.unsqueeze(-2) * head.successor_codebook(candidates)).sum(-1)

    @torch.no_grad()
    def propose(
        self,
        aux: torch.Tensor,
        anchor: int,
        drafts: int,
        embedding: torch.Tensor,
        head: torch.Tensor,
    ) -> list[int]:
        """Greedy drafts behind a context, one request.

        Args:
            aux: ``[T, m * H]`` of all tokens in front of the anchor.
            anchor: the token that the target chose last.
            drafts: ``K``.
            embedding: ``[V, H]``.
            head: ``[V, H]``.
        """
        start = torch.tensor([[aux.shape[0]]])
        rows = self.hidden(aux[None], torch.tensor([[anchor]]), start, drafts, embedding)[0, 0]
        logits = self.config.logit_scale * rows @ head.T
        token, found = anchor, []
        for row, own in zip(rows, logits, strict=True):
            before = torch.tensor(token)
            if self.config.kind == "dspark":
                token = int(self.markov(own, before).argmax())
            elif self.config.kind == "dflash2":
                candidates, score = self.scores(own)
                token = int(candidates[(score + self.edge(row, before, candidates)).argmax()])
            else:
                token = int(own.argmax())
            found.append(token)
        return found

    def checkpoint(self, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
        """Tensors by the names that a checkpoint has."""
        return {name: tensor.to(dtype).contiguous() for name, tensor in self.state_dict().items()}

    def description(self) -> dict[str, Any]:
        """The config's fields, to build the same draft again."""
        return asdict(self.config)
