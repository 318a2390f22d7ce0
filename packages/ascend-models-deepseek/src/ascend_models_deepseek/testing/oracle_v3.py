"""transformers as the reference for DeepSeek-V3 and its kin: logits, greedy tokens, drafts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from ascend_ops_core.testing.language_models import SMALLEST_SELECTION_GAP
from safetensors.torch import load_file

from ascend_models_deepseek.testing.mtp_oracle import MtpOracle
from ascend_models_deepseek.testing.oracle import AmbiguousPromptError, Oracle, oracle_run
from ascend_models_deepseek.testing.selection import NarrowestGap


class V3Oracle(Oracle):
    """A checkpoint folder run by transformers' own model of its `model_type`, in eager attention.

    Args:
        directory: Folder with `config.json` and `model.safetensors` in published names.
        dtype: float32 (bf16 weights are then exact), or bfloat16 to see transformers' own error.

    Raises:
        ValueError: When transformers leaves a tensor of its model unset, or ignores one that is
            not part of a draft layer: such a run would compare against random weights.
    """

    def __init__(self, directory: str | Path, dtype: torch.dtype = torch.float32) -> None:
        self.directory = Path(directory)
        self.model, loading = self.model_class().from_pretrained(
            self.directory, dtype=dtype, attn_implementation="eager", output_loading_info=True
        )
        draft = f"model.layers.{self.model.config.num_hidden_layers}."
        unread = [name for name in loading["unexpected_keys"] if not name.startswith(draft)]
        missing = sorted(loading["missing_keys"])
        mismatched = sorted(str(key) for key in loading["mismatched_keys"])
        if unread or missing or mismatched:
            raise ValueError(
                f"{self.directory}: transformers could not read this checkpoint exactly: "
                f"missing {missing}, unexpected {unread}, misshaped {mismatched}"
            )
        self.model.eval()

    def model_class(self) -> Any:
        """Return transformers' class for the folder's model."""
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM

    @contextmanager
    def watched(self) -> Iterator[NarrowestGap]:
        """Observe every top-k of uncached forwards; models that select tokens watch those too."""
        gap = NarrowestGap()
        routers = [m for m in self.model.modules() if hasattr(m, "e_score_correction_bias")]
        hooks = [
            m.register_forward_hook(lambda r, _, out: see_router(gap, r, out)) for m in routers
        ]
        try:
            yield gap
        finally:
            for handle in hooks:
                handle.remove()

    def clear_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Return `logits` of a sequence in which rounding decides no selection.

        Raises:
            AmbiguousPromptError: When it decides one: the logits are then not defined to the bars.
        """
        with self.watched() as gap:
            logits = self.logits(ids)
        if gap.value < SMALLEST_SELECTION_GAP:
            raise AmbiguousPromptError(
                f"a sequence of {len(ids)} tokens has a top-k decided by {gap.value:.1e}, less "
                f"than {SMALLEST_SELECTION_GAP:.0e}: its logits depend on the order of additions; "
                "use another prompt seed"
            )
        return logits


def see_router(gap: NarrowestGap, router: Any, output: Any) -> None:
    """Take in both choices of a grouped router: of groups, and of experts within them."""
    scores = output[0].sigmoid() + router.e_score_correction_bias
    groups = scores.unflatten(-1, (router.num_group, -1))
    best = groups.topk(min(2, groups.shape[-1]), dim=-1).values.sum(-1)
    gap.see(best, router.topk_group)
    chosen = torch.zeros_like(best).scatter(-1, best.topk(router.topk_group, dim=-1).indices, 1.0)
    outside = (chosen == 0).unsqueeze(-1).expand_as(groups).flatten(-2)
    gap.see(scores.masked_fill(outside, float("-inf")), router.top_k)


class V3MtpOracle(MtpOracle):
    """Greedy drafts of the draft layer in a checkpoint folder, float32, by transformers' MtpLayer.

    transformers does not mask the embedding of the first position, which has no earlier hidden
    state; vLLM does, as training did.

    Args:
        target: The loaded target; its folder must hold the tensors of one draft layer.

    Raises:
        ValueError: When there is no draft layer.

    Attributes:
        masks_first: the draft sees zeros in the place of the first position's embedding.
    """

    masks_first = True

    def __init__(self, target: Oracle) -> None:
        from transformers.modeling_layers import MtpLayer

        self.target = target
        base = target.model.model
        config = self.draft_config(target.model.config)
        config._attn_implementation = "eager"
        own = self.stored()
        if not own:
            raise ValueError(
                f"{target.directory} has no tensors of a draft layer, so nothing to draft with"
            )
        self.layer = MtpLayer(config, type(base.layers[-1]), type(base.norm), 0).float().eval()
        self.layer.load_state_dict(_state(own))
        self.rotary = base.rotary_emb

    def stored(self) -> dict[str, torch.Tensor]:
        """Return the draft layer's tensors in float32, by their names within it."""
        prefix = f"model.layers.{self.target.model.config.num_hidden_layers}."
        file = self.target.directory / "model.safetensors"
        return {
            name.removeprefix(prefix): tensor.float()
            for name, tensor in load_file(file).items()
            if name.startswith(prefix)
        }

    def draft_config(self, config: Any) -> Any:
        """Return the config that transformers' classes make the draft's block from."""
        return config.get_mtp_config()

    @oracle_run()
    def target_streams(self, ids: Sequence[int]) -> torch.Tensor:
        """Return the target's normed hidden states, `[len(ids), hidden]`."""
        out = self.target.model.model(input_ids=torch.tensor([list(ids)]), use_cache=False)
        hidden: torch.Tensor = out.last_hidden_state[0]
        return hidden

    @oracle_run()
    def forward(
        self, streams: torch.Tensor, next_ids: Sequence[int], first: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the draft layer over all positions.

        Args:
            streams: `[T, hidden]`, of the target or of an earlier draft step.
            next_ids: The token after each position, `[T]`.
            first: 0; attention reaches back to the first position.

        Returns:
            Draft states `[T, hidden]` and logits `[T, vocab]`.
        """
        length = len(next_ids)
        positions = torch.arange(length)[None]
        embedded = self.target.model.model.embed_tokens(torch.tensor([list(next_ids)]))
        if self.masks_first:
            embedded = embedded.masked_fill((positions == 0)[..., None], 0.0)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        mask = torch.zeros(length, length).masked_fill(future, float("-inf"))[None, None]
        out = self.layer(
            embedded,
            streams[None],
            position_embeddings=self.rotary(embedded, positions),
            attention_mask=mask,
            position_ids=positions,
            cache=None,
        )
        return out[0], self.target.model.lm_head(out)[0]

    def draft(self, streams: torch.Tensor, ids: Sequence[int], count: int) -> list[int]:
        """Propose `count` tokens after `ids`; see `MtpOracle.draft`."""
        next_ids = list(ids[1:])
        proposed: list[int] = []
        for _ in range(count):
            out, logits = self.forward(streams, next_ids)
            proposed.append(int(logits[-1].argmax()))
            streams = torch.cat([streams, out[-1:]])
            next_ids.append(proposed[-1])
        return proposed


def _state(own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A draft layer's published tensors as a state dict of transformers' `MtpLayer`."""
    joint = {"enorm.weight", "hnorm.weight", "eh_proj.weight"}
    state = {name: own[name] for name in joint}
    state["post_norm.weight"] = own["shared_head.norm.weight"]
    experts = sum(name.endswith(".down_proj.weight") and ".experts." in name for name in own)
    for name, tensor in own.items():
        if name not in joint and not name.startswith("shared_head") and ".experts." not in name:
            state[f"mtp_block.{name}"] = tensor
    if experts:
        part = [
            [own[f"mlp.experts.{e}.{p}_proj.weight"] for p in ("gate", "up", "down")]
            for e in range(experts)
        ]
        state["mtp_block.mlp.experts.gate_up_proj"] = torch.stack([torch.cat(e[:2]) for e in part])
        state["mtp_block.mlp.experts.down_proj"] = torch.stack([e[2] for e in part])
    return state
