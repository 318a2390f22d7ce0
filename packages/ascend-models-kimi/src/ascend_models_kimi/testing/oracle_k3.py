"""Kimi-K3 written out by its formulas: one token, one layer, one head, one expert after another.

There is no other implementation that runs on a CPU. This one shares no code with the model: it
reads the checkpoint's own names, computes in float64, and keeps states, latents and blocks as
Python lists. The formulas are those of vLLM 0.27.1's `vllm/models/kimi_k3`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from ascend_ops_core.testing.language_models import (
    SMALLEST_SELECTION_GAP,
    AmbiguousPromptError,
    Greedy,
    NarrowestGap,
    Said,
    oracle_run,
    random_prompt,
)
from safetensors.torch import load_file

from ascend_models_kimi.testing.mxfp4 import unpack_mxfp4
from ascend_models_kimi.testing.oracle_k3_vision import image_embeddings

_ROOT = "language_model."
_O_NORM_EPS = 1e-5
_UNIT_EPS = 1e-6


@dataclass
class Memory:
    """What one sequence has left behind in one layer.

    Attributes:
        inputs: of the convolutions, query, key and value beside each other, the last ones.
        state: `[heads, value, key]` of delta attention.
        keys: `[heads, channels]` of each token of latent attention.
        values: the same.
    """

    inputs: list[torch.Tensor] = field(default_factory=list)
    state: torch.Tensor | None = None
    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)


class K3Oracle:
    """A checkpoint folder with `config.json` and `model.safetensors` in published names."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.whole = json.loads((self.directory / "config.json").read_text())
        self.config: dict[str, Any] = self.whole["text_config"]
        stored = load_file(self.directory / "model.safetensors")
        self.tensors = {
            name: tensor.double() for name, tensor in stored.items() if tensor.is_floating_point()
        }
        for name, packed in stored.items():
            if name.endswith(".weight_packed"):
                stem = name.removesuffix("_packed")
                self.tensors[stem] = unpack_mxfp4(packed, stored[f"{stem}_scale"])
        self.gap = NarrowestGap()

    @cached_property
    def said(self) -> Said:
        """Greedy continuations that are known."""
        return Said()

    @oracle_run()
    def logits(
        self, ids: Sequence[int], embedded: dict[int, torch.Tensor] | None = None
    ) -> torch.Tensor:
        """Return float32 logits `[len(ids), vocab]`.

        Args:
            ids: The sequence.
            embedded: Embeddings that stand in the place of tokens, by position.
        """
        rows = [self._head(h, "model.norm", "lm_head") for h in self.hidden(ids, embedded)]
        return torch.stack(rows).float()

    @oracle_run()
    def hidden(
        self, ids: Sequence[int], embedded: dict[int, torch.Tensor] | None = None
    ) -> list[torch.Tensor]:
        """Return `[hidden]` of every token in front of the final norm: where drafts continue."""
        memories = self._memories()
        given = embedded or {}
        return [
            self._token(given[i].double() if i in given else self._embedding(one), memories)
            for i, one in enumerate(ids)
        ]

    @oracle_run()
    def streams(
        self, ids: Sequence[int], embedded: dict[int, torch.Tensor] | None = None
    ) -> list[list[torch.Tensor]]:
        """Return of every token the running sums `[hidden]` in front of and behind all layers."""
        memories, given = self._memories(), embedded or {}
        found: list[list[torch.Tensor]] = []
        for i, one in enumerate(ids):
            found.append([])
            row = given[i].double() if i in given else self._embedding(one)
            self._token(row, memories, found[-1])
        return found

    @oracle_run()
    def greedy(
        self,
        prompt_ids: Sequence[int],
        count: int,
        embedded: dict[int, torch.Tensor] | None = None,
    ) -> Greedy:
        """Generate `count` tokens, always the best one."""
        if embedded is None and (known := self.said.greedy(prompt_ids, count)) is not None:
            return known
        memories, given = self._memories(), embedded or {}
        tokens: list[int] = []
        rows: list[torch.Tensor] = []
        for i, one in enumerate(prompt_ids):
            hidden = self._token(
                given[i].double() if i in given else self._embedding(one), memories
            )
        while True:
            rows.append(self._head(hidden, "model.norm", "lm_head").float())
            tokens.append(int(rows[-1].argmax()))
            if len(tokens) == count:
                found = Greedy(tokens, torch.stack(rows))
                if embedded is None:
                    self.said.keep(prompt_ids, found)
                return found
            hidden = self._token(self._embedding(tokens[-1]), memories)

    def clear_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Return `logits` of a sequence in which rounding decides no choice of experts.

        Raises:
            AmbiguousPromptError: When it decides one: the logits are then not defined to the bars.
        """
        self.gap = NarrowestGap()
        logits = self.logits(ids)
        if self.gap.value < SMALLEST_SELECTION_GAP:
            raise AmbiguousPromptError(
                f"a sequence of {len(ids)} tokens has a top-k decided by {self.gap.value:.1e}, "
                f"less than {SMALLEST_SELECTION_GAP:.0e}: use another prompt seed"
            )
        return logits

    def picked_logits(self, prompt_ids: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        """Return `[len(tokens), vocab]` logits that each token of a continuation is picked from."""
        known = self.said.clear_logits(prompt_ids, tokens)
        if known is not None:
            return known
        rows = self.clear_logits([*prompt_ids, *tokens[:-1]])[len(prompt_ids) - 1 :]
        self.said.keep(prompt_ids, Greedy(list(tokens), rows), clear=True)
        return rows

    def clear_prompt(self, length: int, count: int, seed: int = 0) -> list[int]:
        """Return a random prompt with which rounding decides no choice of a greedy run.

        Raises:
            AmbiguousPromptError: None of twenty prompts will do.
        """
        for attempt in range(20):
            # Ids above are those of images.
            vocab = min(int(self.config["vocab_size"]), 490)
            prompt = random_prompt(length, vocab, seed=seed + 1000 * attempt)
            known = self.said.tokens(prompt)[:count]
            if len(known) == count and self.said.clear_logits(prompt, known) is not None:
                return prompt
            self.said.forget(prompt)
            self.gap = NarrowestGap()
            found = self.greedy(prompt, count)
            if self.gap.value >= SMALLEST_SELECTION_GAP:
                self.said.keep(prompt, found, clear=True)
                return prompt
        raise AmbiguousPromptError(f"no clear prompt of {length} tokens from seed {seed}")

    @oracle_run()
    def draft_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Return `[len(ids) - 1, vocab]` logits of the first draft layer behind every token.

        Row `i` predicts token `i + 2` from token `i + 1` and the target's state at token `i`.
        """
        name = f"model.layers.{self.config['num_hidden_layers']}"
        memory = Memory()
        rows = []
        for position, hidden in enumerate(self.hidden(ids)[:-1]):
            embedded = self._embedding(ids[position + 1])
            if position == 0:
                embedded = torch.zeros_like(embedded)
            joined = torch.cat(
                [self._norm(embedded, f"{name}.enorm"), self._norm(hidden, f"{name}.hnorm")]
            )
            x = self._weight(f"{name}.eh_proj") @ joined
            x = x + self._latent(
                f"{name}.self_attn", self._norm(x, f"{name}.input_layernorm"), memory
            )
            x = x + self._ffn(name, self._norm(x, f"{name}.post_attention_layernorm"))
            rows.append(self._head(x, f"{name}.shared_head.norm", "lm_head"))
        return torch.stack(rows).float()

    @oracle_run()
    def image(self, pixels: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        """Return `[rows * columns / 4, hidden]` embeddings of one image; see there."""
        return image_embeddings(self.tensors, self.whole["vision_config"], pixels, grid)

    def _memories(self) -> list[Memory]:
        return [Memory() for _ in range(self.config["num_hidden_layers"])]

    def _token(
        self,
        embedding: torch.Tensor,
        memories: list[Memory],
        passed: list[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """One token through all layers, its sources in a list.

        `passed` receives the running sum in front of every layer, and behind the last.
        """
        block = self.config["attn_res_block_size"]
        done: list[torch.Tensor] = []
        running = embedding
        for layer, memory in enumerate(memories):
            name = f"model.layers.{layer}"
            if passed is not None:
                passed.append(running)
            mixed = self._mix([*done, running], f"{name}.self_attention_res")
            x = self._norm(mixed, f"{name}.input_layernorm")
            delta = layer + 1 in self.config["linear_attn_config"]["kda_layers"]
            attend = self._delta if delta else self._latent
            attended = attend(f"{name}.self_attn", x, memory)
            if layer % block == 0:
                done.append(running)
                running = attended
            else:
                running = running + attended
            mixed = self._mix([*done, running], f"{name}.mlp_res")
            x = self._norm(mixed, f"{name}.post_attention_layernorm")
            running = running + self._ffn(name, x)
        if passed is not None:
            passed.append(running)
        return self._mix([*done, running], "model.output_attn_res")

    def _mix(self, sources: list[torch.Tensor], name: str) -> torch.Tensor:
        weight, proj = self._weight(f"{name}_norm"), self._weight(f"{name}_proj")[0]
        eps = self.config["rms_norm_eps"]
        scores = [
            float((weight * proj * s / (s.square().mean() + eps).sqrt()).sum()) for s in sources
        ]
        shares = [math.exp(score - max(scores)) for score in scores]
        mixed = torch.zeros_like(sources[0])
        for share, source in zip(shares, sources, strict=True):
            mixed += share / sum(shares) * source
        return mixed

    def _delta(self, name: str, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        """Delta attention: the recurrence of one token, one head after another."""
        given = self.config["linear_attn_config"]
        heads, rank = given["num_heads"], given["head_dim"]
        width = given["short_conv_kernel_size"]
        now = torch.cat([self._weight(f"{name}.{one}_proj") @ x for one in "qkv"])
        memory.inputs.append(now)
        kernel = torch.cat([self._weight(f"{name}.{one}_conv1d").flatten(1) for one in "qkv"])
        mixed = torch.zeros_like(now)
        for back, past in enumerate(reversed(memory.inputs[-width:])):
            mixed += kernel[:, width - 1 - back] * past
        query, key, value = _silu(mixed).view(3, heads, rank)
        raw = self._weight(f"{name}.f_b_proj") @ (self._weight(f"{name}.f_a_proj") @ x)
        raw = (raw + self.tensors[f"{_ROOT}{name}.dt_bias"]).view(heads, rank)
        rate = self.tensors[f"{_ROOT}{name}.A_log"].flatten().exp()
        beta = torch.sigmoid(self._weight(f"{name}.b_proj") @ x)
        bound = given.get("gate_lower_bound")
        if memory.state is None:
            memory.state = x.new_zeros(heads, rank, rank)
        outs = []
        for h in range(heads):
            if bound is None:
                decay = -rate[h] * torch.log1p(raw[h].exp())
            else:
                decay = bound * torch.sigmoid(rate[h] * raw[h])
            q = query[h] / (query[h].square().sum() + _UNIT_EPS).sqrt() / rank**0.5
            k = key[h] / (key[h].square().sum() + _UNIT_EPS).sqrt()
            state = memory.state[h] * decay.exp()
            state = state + torch.outer(beta[h] * (value[h] - state @ k), k)
            memory.state[h] = state
            out = state @ q
            out = out / (out.square().mean() + _O_NORM_EPS).sqrt()
            outs.append(out * self._weight(f"{name}.o_norm"))
        if given["use_full_rank_gate"]:
            gate = self._weight(f"{name}.g_proj") @ x
        else:
            gate = self._weight(f"{name}.g_b_proj") @ (self._weight(f"{name}.g_a_proj") @ x)
        return self._weight(f"{name}.o_proj") @ (torch.cat(outs) * torch.sigmoid(gate))

    def _latent(self, name: str, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        """Latent attention with keys and values written out, nothing of it rotated."""
        config = self.config
        heads, nope, rope = (
            config[key] for key in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim")
        )
        rank, wide = config["kv_lora_rank"], config["v_head_dim"]
        if config.get("q_lora_rank") is None:
            query = self._weight(f"{name}.q_proj") @ x
        else:
            low = self._norm(self._weight(f"{name}.q_a_proj") @ x, f"{name}.q_a_layernorm")
            query = self._weight(f"{name}.q_b_proj") @ low
        both = self._weight(f"{name}.kv_a_proj_with_mqa") @ x
        latent = self._norm(both[:rank], f"{name}.kv_a_layernorm")
        made = (self._weight(f"{name}.kv_b_proj") @ latent).view(heads, nope + wide)
        memory.keys.append(torch.cat([made[:, :nope], both[rank:].expand(heads, rope)], dim=1))
        memory.values.append(made[:, nope:])
        keys, values = torch.stack(memory.keys), torch.stack(memory.values)
        outs = []
        for h, q in enumerate(query.view(heads, nope + rope)):
            scores = (keys[:, h] * q).sum(-1)
            shares = (scores / (nope + rope) ** 0.5).softmax(0)
            outs.append((shares.unsqueeze(1) * values[:, h]).sum(0))
        out = torch.cat(outs)
        if config["mla_use_output_gate"]:
            out = out * torch.sigmoid(self._weight(f"{name}.g_proj") @ x)
        return self._weight(f"{name}.o_proj") @ out

    def _ffn(self, layer: str, x: torch.Tensor) -> torch.Tensor:
        if f"{_ROOT}{layer}.mlp.gate_proj.weight" in self.tensors:
            return self._network(f"{layer}.mlp", ("gate_proj", "up_proj", "down_proj"), x)
        config, name = self.config, f"{layer}.block_sparse_moe"
        scores = torch.sigmoid(self._weight(f"{name}.gate") @ x)
        chosen = self._choose(scores, self.tensors[f"{_ROOT}{name}.gate.e_score_correction_bias"])
        total = sum(float(scores[e]) for e in chosen)
        latent = config.get("routed_expert_hidden_size") is not None
        low = self._weight(f"{name}.routed_expert_down_proj") @ x if latent else x
        routed = torch.zeros_like(low)
        for e in chosen:
            weight = float(scores[e]) / total * config["routed_scaling_factor"]
            routed += weight * self._network(f"{name}.experts.{e}", ("w1", "w3", "w2"), low)
        if latent:
            if config["latent_moe_use_norm"]:
                routed = self._norm(routed, f"{name}.routed_expert_norm")
            routed = self._weight(f"{name}.routed_expert_up_proj") @ routed
        shared = (f"{name}.shared_experts", ("gate_proj", "up_proj", "down_proj"))
        return routed + self._network(*shared, x)

    def _choose(self, scores: torch.Tensor, bias: torch.Tensor) -> list[int]:
        """Experts by biased score, those of the best groups alone."""
        config = self.config
        biased = scores + bias
        groups = biased.view(config["num_expert_group"], -1)
        if len(groups) > 1:
            best = groups.topk(2, dim=-1).values.sum(-1)
            self.gap.see(best, config["topk_group"])
            outside = torch.ones(len(groups), dtype=torch.bool)
            outside[best.topk(config["topk_group"]).indices] = False
            biased = groups.masked_fill(outside.unsqueeze(1), -math.inf).flatten()
        self.gap.see(biased, config["num_experts_per_token"])
        chosen: list[int] = biased.topk(config["num_experts_per_token"]).indices.tolist()
        return chosen

    def _network(self, name: str, tensors: Sequence[str], x: torch.Tensor) -> torch.Tensor:
        gate, up, down = (self._weight(f"{name}.{one}") for one in tensors)
        g, u = gate @ x, up @ x
        beta = self.config["activation_situ_beta"]
        linear_beta = self.config["activation_situ_linear_beta"]
        if linear_beta is not None:
            u = linear_beta * torch.tanh(u / linear_beta)
        return down @ (beta * torch.tanh(g / beta) * torch.sigmoid(g) * u)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        rms = (x.square().mean() + self.config["rms_norm_eps"]).sqrt()
        return x / rms * self._weight(name)

    def _head(self, hidden: torch.Tensor, norm: str, head: str) -> torch.Tensor:
        logits = self._weight(head) @ self._norm(hidden, norm)
        return logits * float(self.config.get("logit_scale", 1.0))

    def _embedding(self, token: int) -> torch.Tensor:
        return self._weight("model.embed_tokens")[token]

    def _weight(self, name: str) -> torch.Tensor:
        return self.tensors[f"{_ROOT}{name}.weight"]


def _silu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)
