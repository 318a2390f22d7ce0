"""transformers as the reference for MiniMax-M3: logits, greedy tokens, drafts.

Sequences run one at a time and without padding, since left padding changes what is selected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
    Speculation,
    greedy_in_transformers,
    oracle_run,
    random_prompt,
    watching,
)
from safetensors.torch import load_file

from ascend_models_minimax.testing.tiny_m3 import TEXT_TOKENS

_MTP = "language_model.model.mtp.layers."


class M3Oracle:
    """A checkpoint folder run by transformers' own MiniMax-M3, in eager attention.

    Args:
        directory: Folder with `config.json` and `model.safetensors` in published names.
        dtype: float32 (bf16 weights are then exact), or bfloat16 to see transformers' own error.

    Raises:
        ValueError: When transformers leaves a tensor of its model unset, or ignores one that is
            not part of a draft layer: such a run would compare against random weights.
    """

    def __init__(self, directory: str | Path, dtype: torch.dtype = torch.float32) -> None:
        from transformers import MiniMaxM3SparseForConditionalGeneration, MiniMaxM3VLConfig

        self.directory = Path(directory)
        # A running vLLM has its own config class for the name.
        config = MiniMaxM3VLConfig.from_pretrained(self.directory)
        self.model, loading = MiniMaxM3SparseForConditionalGeneration.from_pretrained(
            self.directory,
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            output_loading_info=True,
        )
        unread = [name for name in loading["unexpected_keys"] if ".mtp." not in name]
        missing = sorted(loading["missing_keys"])
        mismatched = sorted(str(key) for key in loading["mismatched_keys"])
        if unread or missing or mismatched:
            raise ValueError(
                f"{self.directory}: transformers could not read this checkpoint exactly: "
                f"missing {missing}, unexpected {unread}, misshaped {mismatched}"
            )
        self.model.eval()

    @property
    def text(self) -> Any:
        """transformers' text model."""
        return self.model.model.language_model

    @cached_property
    def said(self) -> Said:
        """Greedy continuations that are known."""
        return Said()

    @oracle_run()
    def logits(self, ids: Sequence[int], **inputs: torch.Tensor) -> torch.Tensor:
        """Return float32 logits `[len(ids), vocab]` of one uncached forward over all positions."""
        given = torch.tensor([list(ids)])
        return self.model(input_ids=given, use_cache=False, **inputs).logits[0].float()

    @oracle_run()
    def greedy(self, prompt_ids: Sequence[int], count: int, **inputs: torch.Tensor) -> Greedy:
        """Generate `count` tokens with transformers' cache, always the best one."""
        return greedy_in_transformers(self.model, prompt_ids, count, self.said, **inputs)

    @oracle_run()
    def streams(self, ids: Sequence[int]) -> list[torch.Tensor]:
        """Return the residual stream in front of every layer and behind the last."""
        seen: list[torch.Tensor] = []
        hooks = [
            layer.register_forward_pre_hook(lambda _, args: seen.append(args[0][0]))
            for layer in self.text.layers
        ]
        hooks.append(
            self.text.norm.register_forward_pre_hook(lambda _, args: seen.append(args[0][0]))
        )
        try:
            self.logits(ids)
        finally:
            for handle in hooks:
                handle.remove()
        return seen

    @contextmanager
    def watched(self) -> Iterator[NarrowestGap]:
        """Observe every top-k of uncached forwards, of routers and of indexers."""
        gap = NarrowestGap()
        routers = [m for m in self.text.modules() if hasattr(m, "e_score_correction_bias")]
        hooks = [
            m.register_forward_hook(
                lambda r, _, out: gap.see(out[0].sigmoid() + r.e_score_correction_bias, r.top_k)
            )
            for m in routers
        ]
        indexers = [m for m in self.text.modules() if hasattr(m, "topk_blocks")]
        forwards = [module.forward for module in indexers]
        for module in indexers:
            module.forward = watching(gap, module.forward)
        try:
            yield gap
        finally:
            for handle in hooks:
                handle.remove()
            for module, forward in zip(indexers, forwards, strict=True):
                module.forward = forward

    def clear_logits(self, ids: Sequence[int], **inputs: torch.Tensor) -> torch.Tensor:
        """Return `logits` of a sequence in which rounding decides no selection.

        Raises:
            AmbiguousPromptError: When it decides one: the logits are then not defined to the bars.
        """
        with self.watched() as gap:
            logits = self.logits(ids, **inputs)
        if gap.value < SMALLEST_SELECTION_GAP:
            raise AmbiguousPromptError(
                f"a sequence of {len(ids)} tokens has a top-k decided by {gap.value:.1e}, less "
                f"than {SMALLEST_SELECTION_GAP:.0e}: its logits depend on the order of additions; "
                "use another prompt seed"
            )
        return logits

    def picked_logits(
        self, prompt_ids: Sequence[int], tokens: Sequence[int], **inputs: torch.Tensor
    ) -> torch.Tensor:
        """Return `[len(tokens), vocab]` logits that each token of a continuation is picked from.

        One forward over the prompt and the continuation. When every row's argmax is the token that
        follows, the continuation equals the oracle's greedy one, by induction over its length.
        """
        known = None if inputs else self.said.clear_logits(prompt_ids, tokens)
        if known is not None:
            return known
        rows = self.clear_logits([*prompt_ids, *tokens[:-1]], **inputs)[len(prompt_ids) - 1 :]
        if not inputs:
            self.said.keep(prompt_ids, Greedy(list(tokens), rows), clear=True)
        return rows

    def clear_prompt(self, length: int, count: int, seed: int = 0) -> list[int]:
        """Return a random prompt with which rounding decides no selection of a greedy run.

        Args:
            length: Tokens of the prompt.
            count: Tokens that will be generated.
            seed: Of the first prompt that is tried.

        Raises:
            AmbiguousPromptError: None of twenty prompts will do.
        """
        for attempt in range(20):
            prompt = random_prompt(length, TEXT_TOKENS, seed=seed + 1000 * attempt)
            try:
                self.picked_logits(prompt, self.greedy(prompt, count + 1).tokens)
            except AmbiguousPromptError:
                continue
            return prompt
        raise AmbiguousPromptError(f"no clear prompt of {length} tokens from seed {seed}")

    def selection_effect(self, ids: Sequence[int]) -> float:
        """Largest change of any logit when the indexers keep every block."""
        kept = self.logits(ids)
        indexers = [m for m in self.text.modules() if hasattr(m, "topk_blocks")]
        saved = [module.topk_blocks for module in indexers]
        try:
            for module in indexers:
                module.topk_blocks = len(ids)
            return float((self.logits(ids) - kept).abs().max())
        finally:
            for module, topk in zip(indexers, saved, strict=True):
                module.topk_blocks = topk


class M3MtpOracle:
    """Greedy drafts of the draft layers in a checkpoint folder, float32.

    transformers has no draft of MiniMax-M3. Its decoder layer and norm are the parts of one; only
    the lines that join the target's hidden state with the next token's embedding are written out.

    Args:
        target: The loaded target; its folder must hold the tensors of draft layers.

    Raises:
        ValueError: When there is none.
    """

    def __init__(self, target: M3Oracle) -> None:
        from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as hf

        self.target = target
        raw = json.loads((target.directory / "config.json").read_text())["text_config"]
        depths = raw["num_mtp_modules"]
        stored = load_file(target.directory / "model.safetensors")
        config = type(target.text.config)(
            **raw
            | {
                "num_hidden_layers": 1,
                "moe_layer_freq": [1],
                "sparse_attention_config": raw["sparse_attention_config"]
                | {"sparse_attention_freq": [1]},
            }
        )
        config._attn_implementation = "eager"
        self.depths = []
        for depth in range(depths):
            prefix = f"{_MTP}{depth}."
            own = {
                name.removeprefix(prefix): tensor.float()
                for name, tensor in stored.items()
                if name.startswith(prefix)
            }
            block = hf.MiniMaxM3VLDecoderLayer(config, 0).float().eval()
            block.load_state_dict(_block_state(own))
            self.depths.append((block, own))
        if not self.depths:
            raise ValueError(f"{target.directory} has no draft layers, so nothing to draft with")

    def _norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        norm = type(self.target.text.norm)(hidden.shape[-1], eps=self.target.text.norm.eps)
        norm.load_state_dict({"weight": weight})
        normed: torch.Tensor = norm(hidden)
        return normed

    @oracle_run()
    def target_states(self, ids: Sequence[int]) -> torch.Tensor:
        """Return the target's normed hidden states, `[len(ids), hidden]`."""
        out = self.target.text(input_ids=torch.tensor([list(ids)]), use_cache=False)
        states: torch.Tensor = out.last_hidden_state[0]
        return states

    @oracle_run()
    def forward(
        self, states: torch.Tensor, next_ids: Sequence[int], depth: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run a draft layer over all positions.

        Args:
            states: `[T, hidden]`, of the target or of an earlier draft step.
            next_ids: The token after each position, `[T]`.
            depth: Which layer.

        Returns:
            Draft states `[T, hidden]` in front of the head's norm, and logits `[T, vocab]`.
        """
        block, own = self.depths[depth]
        length = len(next_ids)
        positions = torch.arange(length)[None]
        embedded = self.target.text.embed_tokens(torch.tensor([list(next_ids)]))
        embedded = embedded.masked_fill((positions == 0)[..., None], 0.0)
        joined = torch.cat(
            [
                self._norm(embedded, own["enorm.weight"]),
                self._norm(states[None], own["hnorm.weight"]),
            ],
            dim=-1,
        )
        joined = joined @ own["eh_proj.weight"].T
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        mask = torch.zeros(length, length).masked_fill(future, float("-inf"))[None, None]
        out = block(
            joined,
            position_embeddings=self.target.text.rotary_emb(joined, position_ids=positions),
            attention_mask=mask,
            position_ids=positions,
            cache=None,
        )
        logits = self.target.model.lm_head(self._norm(out, own["final_layernorm.weight"]))
        return out[0], logits[0]

    def draft(self, states: torch.Tensor, ids: Sequence[int], count: int) -> list[int]:
        """Propose `count` tokens after `ids`, each step on the states of the step before.

        Args:
            states: Target states of all but the last id, `[len(ids) - 1, hidden]`.
            ids: The sequence so far; its last token was sampled but not yet run by the target.
            count: Number of proposals.
        """
        next_ids = list(ids[1:])
        proposed: list[int] = []
        for step in range(count):
            out, logits = self.forward(states, next_ids, step % len(self.depths))
            proposed.append(int(logits[-1].argmax()))
            states = torch.cat([states, out[-1:]])
            next_ids.append(proposed[-1])
        return proposed

    def speculate(self, prompt: Sequence[int], count: int, width: int) -> Speculation:
        """Simulate greedy speculative decoding of `count` tokens with `width` drafts a round."""
        tokens = self.target.greedy(prompt, count + width + 1).tokens
        ids = [*prompt, *tokens]
        states = self.target_states(ids)
        rounds = accepted = 0
        done = 1
        while done < count:
            known = len(prompt) + done
            proposed = self.draft(states[: known - 1], ids[:known], width)
            truth = ids[known : known + width]
            matched = next(
                (i for i, (a, b) in enumerate(zip(proposed, truth, strict=True)) if a != b), width
            )
            rounds, accepted, done = rounds + 1, accepted + matched, done + matched + 1
        return Speculation(rounds, rounds * width, accepted)


def _block_state(own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A draft layer's published tensors as a state dict of transformers' decoder layer."""
    prefix = "transformer_layer."
    block = {
        name.removeprefix(prefix): tensor for name, tensor in own.items() if name.startswith(prefix)
    }
    state: dict[str, torch.Tensor] = {}
    experts: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in block.items():
        name = name.replace("block_sparse_moe.e_score", "mlp.gate.e_score")
        name = name.replace("block_sparse_moe.", "mlp.")
        for part in ("q_proj", "k_proj", "q_norm", "k_norm"):
            name = name.replace(f"self_attn.index_{part}", f"self_attn.indexer.{part}")
        if name.startswith("mlp.experts."):
            _, _, expert, which, _ = name.split(".")
            experts.setdefault(int(expert), {})[which] = tensor
        else:
            state[name] = tensor
    shared = "mlp.shared_experts."
    gate, up = (state.pop(f"{shared}{part}_proj.weight") for part in ("gate", "up"))
    state[f"{shared}gate_up_proj.weight"] = torch.cat([gate, up])
    stacks = [experts[e] for e in range(len(experts))]
    state["mlp.experts.gate_up_proj"] = torch.stack(
        [torch.cat([one["w1"], one["w3"]]) for one in stacks]
    )
    state["mlp.experts.down_proj"] = torch.stack([one["w2"] for one in stacks])
    return state
