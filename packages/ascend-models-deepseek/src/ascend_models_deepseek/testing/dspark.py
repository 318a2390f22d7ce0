"""DeepSeek-V4's DSpark draft in differentiable tensor code, of transformers' decoder blocks.

transformers has no such draft. Its decoder layer, norms and stream collapse are the parts of one;
how hidden states become context, what a block sees and how its tokens are chosen is written out.
Shapes: ``B`` sequences of ``T`` tokens; ``N`` blocks in each, of ``Q`` rows; ``W`` tokens of
window; ``H`` channels, ``V`` tokens.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from ascend_models_deepseek.testing.mtp_weights import random_like
from ascend_models_deepseek.testing.original_names import (
    block_to_transformers,
    is_control_tensor,
    to_original,
)

__all__ = ["DSparkShape", "DenseDSpark", "load_dspark", "random_dspark", "write_dspark"]


@dataclass(frozen=True)
class DSparkShape:
    """What DSpark's keys in a config say.

    Attributes:
        target_layers: layers of the target, from 0, whose outputs are read.
        layers: of the draft.
        markov_rank: of the Markov head.
        noise_token: id that stands in the places to be filled.
        block: drafts of a block in training.
        from_anchor: whether the anchor's own row predicts the first draft.
    """

    target_layers: tuple[int, ...]
    layers: int = 2
    markov_rank: int = 16
    noise_token: int = 2
    block: int = 4
    from_anchor: bool = True

    def to_json(self) -> dict[str, Any]:
        """The keys beside those of the target."""
        return {
            "num_nextn_predict_layers": 0,
            "n_mtp_layers": self.layers,
            "dspark_target_layer_ids": list(self.target_layers),
            "dspark_markov_rank": self.markov_rank,
            "dspark_noise_token_id": self.noise_token,
            "dspark_block_size": self.block,
            "sample_from_anchor": self.from_anchor,
        }

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> DSparkShape:
        """Of a ``config.json`` that :meth:`to_json` is a part of."""
        return cls(
            tuple(given["dspark_target_layer_ids"]),
            given["n_mtp_layers"],
            given["dspark_markov_rank"],
            given["dspark_noise_token_id"],
            given["dspark_block_size"],
            given["sample_from_anchor"],
        )


class _Context:
    """In the place of transformers' cache: rows ``[.., 1, W, D]`` in front of a block's own."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def update(self, own: torch.Tensor, *rest: Any, **unused: Any) -> tuple[torch.Tensor, ...]:
        both = torch.cat([self.rows, own], dim=2)
        return both, both


class DenseDSpark(nn.Module):
    """The draft.

    Args:
        config: transformers' config of the target.
        shape: of the draft.
    """

    def __init__(self, config: Any, shape: DSparkShape) -> None:
        from transformers.models.deepseek_v4 import modeling_deepseek_v4 as hf

        super().__init__()
        own = config.__class__.from_dict(config.to_dict())
        own._attn_implementation = "eager"
        first, hidden, eps = config.num_hidden_layers, config.hidden_size, config.rms_norm_eps
        own.layer_types = [*config.layer_types[:first], *["sliding_attention"] * shape.layers]
        own.mlp_layer_types = [*config.mlp_layer_types[:first], *["moe"] * shape.layers]
        self.shape, self.streams, self.window = shape, config.hc_mult, config.sliding_window
        self.main_proj = nn.Linear(len(shape.target_layers) * hidden, hidden, bias=False)
        self.main_norm = hf.DeepseekV4RMSNorm(hidden, eps=eps)
        self.blocks = nn.ModuleList(
            hf.DeepseekV4DecoderLayer(own, first + i).float() for i in range(shape.layers)
        )
        self.collapse = hf.DeepseekV4HyperHead(own).float()
        self.norm = hf.DeepseekV4RMSNorm(hidden, eps=eps)
        self.markov_w1 = nn.Embedding(config.vocab_size, shape.markov_rank)
        self.markov_w2 = nn.Linear(shape.markov_rank, config.vocab_size, bias=False)
        self.confidence = nn.Linear(hidden + shape.markov_rank, 1, bias=False)
        self.rotary = hf.DeepseekV4RotaryEmbedding(own)
        self.rotate = hf.apply_rotary_pos_emb

    def queries(self, drafts: int) -> int:
        """Rows of a block of so many drafts."""
        return drafts if self.shape.from_anchor else drafts + 1

    def places(self, drafts: int) -> int:
        """Places of the block that so many drafts are taken from: no fewer than in training."""
        return max(drafts, self.shape.block)

    def hidden(
        self,
        aux: torch.Tensor,
        anchors: torch.Tensor,
        starts: torch.Tensor,
        drafts: int,
        embedding: torch.Tensor,
    ) -> torch.Tensor:
        """Rows ``[B, N, K, H]`` that predict, in front of the norm.

        Args:
            aux: ``[B, T, m * H]`` of the target, layer by layer.
            anchors: ``[B, N]`` tokens that begin the blocks.
            starts: ``[B, N]`` their positions, at most ``T``; the context is in front of them.
            drafts: ``K``.
            embedding: ``[V, H]``.
        """
        rows, tokens = aux.shape[:2]
        count, queries = starts.shape[1], self.queries(drafts)
        combined = self.main_norm(self.main_proj(aux))
        every = torch.arange(tokens)[None]
        place = starts.unsqueeze(-1) - self.window + torch.arange(self.window)
        kept = place >= 0
        row = torch.arange(rows)[:, None, None]

        ids = torch.full((rows * count, queries), self.shape.noise_token)
        ids[:, 0] = anchors.flatten()
        positions = starts.flatten()[:, None] + torch.arange(queries)
        streams = F.embedding(ids, embedding).unsqueeze(2).expand(-1, -1, self.streams, -1)
        streams = streams.contiguous()
        seen = torch.cat([kept.flatten(0, 1), torch.ones(rows * count, queries).bool()], dim=1)
        mask = torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))[:, None, None]
        turned = self.rotary(streams, positions, layer_type="main")
        for block in self.blocks:
            attention: Any = block.self_attn
            own = attention.kv_norm(attention.kv_proj(combined)).unsqueeze(1)
            own = self.rotate(own, *self.rotary(own, every, layer_type="main")).squeeze(1)
            context = own[row, place.clamp(min=0)].flatten(0, 1).unsqueeze(1)
            streams = block(
                streams,
                position_embeddings={"main": turned},
                position_ids=positions,
                attention_mask=mask.expand(-1, -1, queries, -1),
                cache=_Context(context),
            )
        out = self.collapse(streams).unflatten(0, (rows, count))
        return out if self.shape.from_anchor else out[:, :, 1:]

    def logits(self, hidden: torch.Tensor, before: torch.Tensor, head: torch.Tensor) -> Any:
        """``[..., V]`` of rows ``hidden [..., H]`` behind the tokens ``before [...]``."""
        return self.norm(hidden) @ head.T + self.markov_w2(self.markov_w1(before))

    def sure(self, hidden: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """Scores ``[...]`` whose sigmoid is the probability that a place stands."""
        read = torch.cat([hidden, self.markov_w1(before)], dim=-1)
        scores: torch.Tensor = self.confidence(read).squeeze(-1)
        return scores

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
            drafts: ``K``, the first of a block.
            embedding: ``[V, H]``.
            head: ``[V, H]``.
        """
        start, places = torch.tensor([[aux.shape[0]]]), self.places(drafts)
        hidden = self.hidden(aux[None], torch.tensor([[anchor]]), start, places, embedding)[0, 0]
        token, found = anchor, []
        for row in hidden[:drafts]:
            token = int(self.logits(row, torch.tensor(token), head).argmax())
            found.append(token)
        return found

    def checkpoint(self, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
        """Tensors by the names that a checkpoint has, matrices in ``dtype``."""
        last = f"mtp.{self.shape.layers - 1}."
        tensors = {
            "mtp.0.main_proj.weight": self.main_proj.weight,
            "mtp.0.main_norm.weight": self.main_norm.weight,
            f"{last}norm.weight": self.norm.weight,
            f"{last}markov_head.markov_w1.weight": self.markov_w1.weight,
            f"{last}markov_head.markov_w2.weight": self.markov_w2.weight,
            f"{last}confidence_head.proj.weight": self.confidence.weight,
        }
        for part in ("fn", "base", "scale"):
            tensors[f"{last}hc_head_{part}"] = getattr(self.collapse, f"hc_{part}")
        for i, block in enumerate(self.blocks):
            named = {f"model.layers.{i}.{name}": one for name, one in block.state_dict().items()}
            tensors |= {f"mtp.{name[7:]}": one for name, one in to_original(named).items()}
        return {
            name: one.detach().to(torch.float32 if is_control_tensor(name) else dtype).clone()
            for name, one in tensors.items()
        }

    def fill(self, tensors: dict[str, torch.Tensor]) -> None:
        """Take the weights of a checkpoint."""
        last = f"mtp.{self.shape.layers - 1}."
        state = {
            "main_proj.weight": tensors["mtp.0.main_proj.weight"],
            "main_norm.weight": tensors["mtp.0.main_norm.weight"],
            "norm.weight": tensors[f"{last}norm.weight"],
            "markov_w1.weight": tensors[f"{last}markov_head.markov_w1.weight"],
            "markov_w2.weight": tensors[f"{last}markov_head.markov_w2.weight"],
            "confidence.weight": tensors[f"{last}confidence_head.proj.weight"],
        }
        for part in ("fn", "base", "scale"):
            state[f"collapse.hc_{part}"] = tensors[f"{last}hc_head_{part}"]
        others = ("main_", "norm.", "hc_head_", "markov_head.", "confidence_head.")
        for i in range(self.shape.layers):
            own = {name: one for name, one in tensors.items() if name.startswith(f"mtp.{i}.")}
            own = {name.removeprefix(f"mtp.{i}."): one for name, one in own.items()}
            block = {name: one for name, one in own.items() if not name.startswith(others)}
            for name, one in block_to_transformers(block).items():
                state[f"blocks.{i}.{name}"] = one
        missing = self.load_state_dict({n: t.float() for n, t in state.items()}, strict=False)
        left = [name for name in missing.missing_keys if "inv_freq" not in name]
        assert not left, left
        assert not missing.unexpected_keys, missing.unexpected_keys


def random_dspark(config: Any, shape: DSparkShape, seed: int) -> DenseDSpark:
    """A draft with random weights, all of which matter for what it says."""
    draft = DenseDSpark(config, shape)
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: random_like(name, one, generator) for name, one in sorted(draft.checkpoint().items())
    }
    draft.fill(tensors)
    return draft.eval().requires_grad_(False)


def write_dspark(
    draft: DenseDSpark, target: Path, folder: Path, dtype: torch.dtype = torch.float32
) -> Path:
    """Write a checkpoint with the draft alone.

    Args:
        draft: what is written.
        target: checkpoint directory of the target, whose config is the draft's too.
        folder: made if need be.
        dtype: of the matrices.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((target / "config.json").read_text()) | draft.shape.to_json()
    config["torch_dtype"] = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file(draft.checkpoint(dtype), folder / "model.safetensors", {"format": "pt"})
    return folder


def load_dspark(config: Any, folder: Path) -> DenseDSpark:
    """Read a draft's checkpoint, in float32, with transformers' config of the target."""
    shape = DSparkShape.from_json(json.loads((folder / "config.json").read_text()))
    draft = DenseDSpark(config, shape)
    draft.fill(load_file(folder / "model.safetensors"))
    return draft.eval().requires_grad_(False)
