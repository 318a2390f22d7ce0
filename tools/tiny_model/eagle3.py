"""Eagle3 drafts for the tiny targets: one decoder layer that goes on from the target's streams.

Li et al., 2025, "EAGLE-3: Scaling up inference acceleration of large language models via
training-time test": the draft is trained on its own outputs, several steps on, because that is
what it reads when it drafts. Tensor names are those that vLLM's ``Eagle3LlamaForCausalLM`` reads.

Shapes: B rows, S tokens, D hidden size, H heads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn
from transformers import LlamaConfig, PretrainedConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as rotate

from tools.tiny_model.data import batches
from tools.tiny_model.dense import (
    DenseRecipe,
    Schedule,
    held_out,
    layer_of_draft,
    load_target,
    tokenizer_of,
    write_report,
)

AUX_LAYERS = (1, 3, 5)
"""The draft reads the residual streams in front of these layers of the target."""

DRAFT_VOCABULARY = 640
"""Most frequent tokens, which alone are drafted."""

UNROLLED = 4
"""Drafted tokens that a training step goes on for."""

DECAY = 0.8
"""Weight of each further step."""


class Eagle3(nn.Module):
    """The draft of a target, whose token embedding it shares.

    Args:
        target: the target's config.
        embedding: the target's.
        frequent: ``[DRAFT_VOCABULARY]`` target ids in rising order.
    """

    frequent: torch.Tensor

    def __init__(
        self, target: PretrainedConfig, embedding: nn.Embedding, frequent: torch.Tensor
    ) -> None:
        super().__init__()
        config = LlamaConfig(**draft_config(target))
        width, eps = config.hidden_size, config.rms_norm_eps
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        self.embed = [embedding]  # Not a parameter of the draft.
        self.rotary = LlamaRotaryEmbedding(config)
        self.fc = nn.Linear(len(AUX_LAYERS) * width, width, bias=False)
        self.input_layernorm = LlamaRMSNorm(width, eps)
        self.hidden_norm = LlamaRMSNorm(width, eps)
        self.post_attention_layernorm = LlamaRMSNorm(width, eps)
        self.q_proj = nn.Linear(2 * width, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(2 * width, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(2 * width, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, width, bias=False)
        self.mlp = LlamaMLP(config)
        self.norm = LlamaRMSNorm(width, eps)
        self.lm_head = nn.Linear(width, len(frequent), bias=False)
        self.register_buffer("frequent", frequent, persistent=False)

    def forward(self, ids: torch.Tensor, aux: torch.Tensor, steps: int) -> list[torch.Tensor]:
        """Draft from every token of every row at once.

        Args:
            ids: ``[B, S]`` tokens.
            aux: ``[B, S, 3 D]`` the target's streams.
            steps: tokens to draft.

        Returns:
            Logits of each step, ``[B, S - 1 - step, DRAFT_VOCABULARY]``. Row t of step j is what
            follows token ``t + 1 + j``, drafted from the streams up to token t alone.
        """
        hidden = self.fc(aux)
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        logits = []
        for step in range(steps):
            count = ids.shape[1] - 1 - step
            hidden = hidden[:, :count]
            tokens = self.embed[0](ids[:, 1 + step :])
            hidden = self._layer(tokens, hidden, step, keys, values)
            logits.append(self.lm_head(self.norm(hidden)))
        return logits

    def _layer(
        self,
        tokens: torch.Tensor,
        hidden: torch.Tensor,
        step: int,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
    ) -> torch.Tensor:
        x = torch.cat([self.input_layernorm(tokens), self.hidden_norm(hidden)], dim=-1)
        hidden = hidden + self.o_proj(self._attend(x, step, keys, values))
        return hidden + self.mlp(self.post_attention_layernorm(hidden))

    def _attend(
        self, x: torch.Tensor, step: int, keys: list[torch.Tensor], values: list[torch.Tensor]
    ) -> torch.Tensor:
        """Rows see earlier rows of step 0, and their own rows of later steps."""
        rows, count, _ = x.shape
        q = self.q_proj(x).view(rows, count, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(rows, count, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(rows, count, self.kv_heads, self.head_dim).transpose(1, 2)
        place = torch.arange(step, step + count).unsqueeze(0)
        q, k = rotate(q, k, *self.rotary(v, place))
        groups = self.heads // self.kv_heads
        keys.append(k.repeat_interleave(groups, dim=1))
        values.append(v.repeat_interleave(groups, dim=1))
        scores = q @ keys[0][:, :, :count].transpose(2, 3)
        hidden = torch.ones(count, count, dtype=torch.bool).triu(1)
        parts = [scores.masked_fill(hidden, float("-inf"))]
        parts += [(q * one[:, :, :count]).sum(-1, keepdim=True) for one in keys[1:]]
        weights = (torch.cat(parts, dim=-1) * self.head_dim**-0.5).softmax(dim=-1)
        out = weights[..., :count] @ values[0][:, :, :count]
        for i, one in enumerate(values[1:]):
            out = out + weights[..., count + i, None] * one[:, :, :count]
        return out.transpose(1, 2).flatten(2)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The checkpoint's tensors, in bfloat16; ``d2t`` is what to add to a drafted id."""
        own = {"fc", "norm", "lm_head"}
        out = {}
        for name, value in self.state_dict().items():
            head = name.split(".")[0]
            inside = "self_attn." if head in {"q_proj", "k_proj", "v_proj", "o_proj"} else ""
            place = name if head in own else f"midlayer.{inside}{name}"
            out[place] = value.to(torch.bfloat16).contiguous()
        out["d2t"] = self.frequent - torch.arange(len(self.frequent))
        return out


def frequent_tokens(tokenizer: Tokenizer, vocabulary: int, count: int) -> torch.Tensor:
    """The ``count`` most frequent ids of some stories, in rising order."""
    sample = next(batches(tokenizer, seed=77, batch=64, length=512))
    return torch.bincount(sample.flatten(), minlength=vocabulary).topk(count).indices.sort().values


@torch.no_grad()
def streams_and_choices(
    target: PreTrainedModel, ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The target's streams that the draft reads ``[B, S, 3 D]``, and its logits ``[B, S, V]``."""
    out = target(input_ids=ids, use_cache=False, output_hidden_states=True)
    read = [out.hidden_states[i] for i in AUX_LAYERS]
    # DeepSeek-V4 has several residual streams, of which a draft reads the average.
    read = [one.mean(dim=2) if one.ndim == 4 else one for one in read]
    return torch.cat(read, dim=-1), out.logits


def draft_loss(model: Eagle3, target: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of each step against what the target says there, on the drafted tokens."""
    aux, logits = streams_and_choices(target, ids)
    wanted = logits[..., model.frequent].softmax(dim=-1)
    loss = aux.new_zeros(())
    for step, drafted in enumerate(model(ids, aux, UNROLLED)):
        loss = loss + DECAY**step * F.cross_entropy(
            drafted.flatten(0, 1), wanted[:, 1 + step :].flatten(0, 1)
        )
    return loss


@torch.no_grad()
def agreement(
    model: Eagle3, target: PreTrainedModel, tokenizer: Tokenizer, count: int
) -> list[float]:
    """How often each drafted token is the target's own choice, if all before it were.

    On held-out stories, where the text stands for what was drafted before.
    """
    rows = held_out(tokenizer)
    hits, tries = torch.zeros(UNROLLED), torch.zeros(UNROLLED)
    for _ in range(count):
        ids = next(rows)
        aux, logits = streams_and_choices(target, ids)
        choice = logits.argmax(dim=-1)
        # A draft of more than one token is read only if the text is the target's choice so far.
        alive = torch.ones_like(ids, dtype=torch.bool)
        for step, drafted in enumerate(model(ids, aux, UNROLLED)):
            right = model.frequent[drafted.argmax(-1)] == choice[:, 1 + step :]
            count = right.shape[1]
            alive = alive[:, :count]
            if step:
                alive = alive & (choice[:, step : step + count] == ids[:, 1 + step :])
            hits[step] += (right & alive).sum()
            tries[step] += alive.sum()
            alive = alive & right
    return [round(float(h / t), 4) for h, t in zip(hits, tries, strict=True)]


def draft_config(target: PretrainedConfig) -> dict[str, Any]:
    """``config.json`` of a draft for a target."""
    same = (
        "hidden_size",
        "vocab_size",
        "max_position_embeddings",
        "rms_norm_eps",
        "bos_token_id",
        "eos_token_id",
    )
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "num_hidden_layers": 1,
        "draft_vocab_size": DRAFT_VOCABULARY,
        "tie_word_embeddings": False,
        "eagle_aux_hidden_state_layer_ids": list(AUX_LAYERS),
        **{name: getattr(target, name) for name in same},
        **layer_of_draft(target),
    }


def train_eagle3(directory: Path, recipe: DenseRecipe, out: Path) -> None:
    """Train a draft for the target in ``directory`` and leave its checkpoint in ``out``."""
    torch.manual_seed(recipe.seed)
    target, tokenizer = load_target(directory), tokenizer_of(directory)
    frequent = frequent_tokens(tokenizer, target.config.vocab_size, DRAFT_VOCABULARY)
    model = Eagle3(target.config, target.get_input_embeddings(), frequent).train()
    schedule = Schedule(recipe, tokenizer, list(model.parameters()))
    for ids in schedule.batches():
        schedule.learn(draft_loss(model, target, ids))
    out.mkdir(parents=True, exist_ok=True)
    save_file(model.tensors(), out / "model.safetensors", metadata={"format": "pt"})
    config = json.dumps(draft_config(target.config), indent=2) + "\n"
    (out / "config.json").write_text(config)
    model.eval()
    write_report(
        out, schedule.progress, agreement=agreement(model, target, tokenizer, recipe.scored)
    )
