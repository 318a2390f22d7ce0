"""Kimi-K3's DSpark draft written out by its formulas: one row, one head after another, in float64.

It shares no code with the model. The formulas are those of vLLM 0.27.1's
`vllm/models/kimi_k3/nvidia/dspark_mla.py` and of its speculator.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from ascend_ops_core.testing.language_models import oracle_run
from safetensors.torch import load_file

from ascend_models_kimi.testing.oracle_k3 import K3Oracle


@dataclass
class Rounds:
    """Greedy speculation of one request.

    Attributes:
        drafts: What was drafted in each round.
        accepted: How many of them stood.
    """

    drafts: list[list[int]] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)


class K3DSparkOracle:
    """A draft's folder, and the target that it reads."""

    def __init__(self, directory: str | Path, target: K3Oracle) -> None:
        self.target = target
        self.config: dict[str, Any] = json.loads((Path(directory) / "config.json").read_text())
        stored = load_file(Path(directory) / "model.safetensors")
        self.tensors = {name: tensor.double() for name, tensor in stored.items()}

    def speculate(
        self,
        prompt: Sequence[int],
        said: Sequence[int],
        width: int,
        embedded: dict[int, torch.Tensor] | None = None,
    ) -> Rounds:
        """Draft `width` tokens a round behind a greedy continuation that is known.

        Args:
            prompt: Of the request.
            said: What the target says, at least `width` tokens more than are generated.
            width: Drafts of a round.
            embedded: Embeddings that stand in the place of the prompt's tokens, by position.
        """
        whole, rounds = [*prompt, *said], Rounds()
        streams = self.target.streams(whole, embedded)
        context = [self.context(rows) for rows in streams]
        # The first round comes behind the prompt, when the first token is known.
        known = len(prompt)
        while known < len(whole) - width:
            drafts = self.draft(context[:known], whole[known], width)
            right = 0
            while right < width and drafts[right] == whole[known + 1 + right]:
                right += 1
            rounds.drafts.append(drafts)
            rounds.accepted.append(right)
            known += right + 1
        return rounds

    @oracle_run()
    def context(self, passed: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return `[hidden]` of one token's running sums in front of and behind all layers."""
        read = torch.cat([passed[layer + 1] for layer in self.config["target_layer_ids"]])
        return self._norm(self._weight("context_proj") @ read, "context_norm")

    @oracle_run()
    def draft(self, context: Sequence[torch.Tensor], anchor: int, width: int) -> list[int]:
        """Return the drafts of a block behind `context`, whose first token is `anchor`."""
        from_anchor = self.config["sample_from_anchor"]
        count, start = width if from_anchor else width + 1, len(context)
        ids = [anchor] + [self.config["mask_token_id"]] * (count - 1)
        rows = [self.target._weight("model.embed_tokens")[one] for one in ids]
        for number in range(self.config["num_hidden_layers"]):
            name = f"layers.{number}"
            normed = [self._norm(row, f"{name}.input_layernorm") for row in rows]
            seen = [self._key(name, row, place) for place, row in enumerate([*context, *normed])]
            for i, row in enumerate(normed):
                rows[i] = rows[i] + self._attend(name, row, start + i, seen)
            for i, row in enumerate(rows):
                x = self._norm(row, f"{name}.post_attention_layernorm")
                gate, up = (self._weight(f"{name}.mlp.{one}_proj") @ x for one in ("gate", "up"))
                inner = gate * torch.sigmoid(gate) * up
                rows[i] = row + self._weight(f"{name}.mlp.down_proj") @ inner
        places = rows if from_anchor else rows[1:]
        drafts, before = [], anchor
        for row in places:
            logits = self.target._weight("lm_head") @ self._norm(row, "final_norm")
            logits = (
                logits
                + self._weight("markov_head.markov_w2")
                @ (self._weight("markov_head.markov_w1")[before])
            )
            before = int((logits * self.config["logit_scale"]).argmax())
            drafts.append(before)
        return drafts

    def _key(self, name: str, row: torch.Tensor, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys `[heads, channels]` and values `[heads, channels]` of one row."""
        rank, heads = self.config["kv_lora_rank"], self.config["num_attention_heads"]
        both = self._weight(f"{name}.self_attn.kv_a_proj_with_mqa") @ row
        latent = self._norm(both[:rank], f"{name}.self_attn.kv_a_layernorm")
        made = (self._weight(f"{name}.self_attn.kv_b_proj") @ latent).view(heads, -1)
        plain = self.config["qk_nope_head_dim"]
        shared = self._rotate(both[rank:], place).expand(heads, -1)
        return torch.cat([made[:, :plain], shared], dim=1), made[:, plain:]

    def _attend(
        self,
        name: str,
        row: torch.Tensor,
        place: int,
        seen: Sequence[tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        plain = self.config["qk_nope_head_dim"]
        low = self._norm(
            self._weight(f"{name}.self_attn.q_a_proj") @ row, f"{name}.self_attn.q_a_layernorm"
        )
        queries = self._weight(f"{name}.self_attn.q_b_proj") @ low
        outs = []
        for h, query in enumerate(queries.view(self.config["num_attention_heads"], -1)):
            turned = torch.cat([query[:plain], self._rotate(query[plain:], place)])
            scores = torch.stack([(turned * keys[h]).sum() for keys, _ in seen])
            shares = (scores / len(turned) ** 0.5).softmax(0)
            outs.append(sum(s * values[h] for s, (_, values) in zip(shares, seen, strict=True)))
        return self._weight(f"{name}.self_attn.o_proj") @ torch.cat(outs)

    def _rotate(self, x: torch.Tensor, place: int) -> torch.Tensor:
        """Turn the pairs of channels `(0, 1), (2, 3), ...` by the place's angles."""
        turned = x.clone()
        for pair in range(len(x) // 2):
            angle = torch.tensor(
                place / self.config["rope_theta"] ** (2 * pair / len(x)), dtype=torch.float64
            )
            a, b = x[2 * pair], x[2 * pair + 1]
            turned[2 * pair] = a * angle.cos() - b * angle.sin()
            turned[2 * pair + 1] = a * angle.sin() + b * angle.cos()
        return turned

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        rms = (x.square().mean() + self.config["rms_norm_eps"]).sqrt()
        return x / rms * self._weight(name)

    def _weight(self, name: str) -> torch.Tensor:
        return self.tensors[f"{name}.weight"]
