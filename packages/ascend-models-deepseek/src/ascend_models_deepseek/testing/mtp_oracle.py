"""What a checkpoint's draft layer must propose, computed with transformers' decoder block.

transformers has no DeepSeek-V4 draft model. Its decoder layer, norm and stream collapse are the
parts of one, and are used here with the `mtp.0.` tensors; only the few lines that join the target's
hidden state with the next token's embedding are written out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ascend_ops_core.testing.language_models import Speculation
from safetensors.torch import load_file

from ascend_models_deepseek.testing.oracle import Oracle, oracle_run
from ascend_models_deepseek.testing.original_names import block_to_transformers

_NOT_BLOCK = ("enorm", "hnorm", "e_proj", "h_proj", "norm.", "hc_head", "head.", "emb.")


class MtpOracle:
    """Greedy drafts of the draft layer in a checkpoint folder, float32.

    Args:
        target: The loaded target; its folder must hold `mtp.0.*` tensors.

    Raises:
        ValueError: When there is no draft layer.
    """

    def __init__(self, target: Oracle) -> None:
        from transformers.models.deepseek_v4 import modeling_deepseek_v4 as hf

        self.target = target
        stored = load_file(target.directory / "model.safetensors")
        own = {
            name.removeprefix("mtp.0."): tensor.float()
            for name, tensor in stored.items()
            if name.startswith("mtp.0.")
        }
        if not own:
            raise ValueError(f"{target.directory} has no mtp.0.* tensors, so nothing to draft with")
        config = target.model.config.__class__.from_pretrained(target.directory)
        config._attn_implementation = "eager"
        index = config.num_hidden_layers
        config.layer_types = [*config.layer_types, "sliding_attention"]
        config.mlp_layer_types = [*config.mlp_layer_types, "moe"]
        self.hc_mult = config.hc_mult
        self.block = hf.DeepseekV4DecoderLayer(config, index).float().eval()
        self.block.load_state_dict(
            block_to_transformers(
                {name: t for name, t in own.items() if not name.startswith(_NOT_BLOCK)}
            )
        )
        self.collapse = hf.DeepseekV4HyperHead(config).float()
        self.collapse.load_state_dict(
            {f"hc_{part}": own[f"hc_head_{part}"] for part in ("fn", "base", "scale")}
        )
        self.norms = {}
        for name in ("enorm", "hnorm", "norm"):
            self.norms[name] = hf.DeepseekV4RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
            self.norms[name].load_state_dict({"weight": own[f"{name}.weight"]})
        self.e_proj, self.h_proj = own["e_proj.weight"], own["h_proj.weight"]
        self.rotary = hf.DeepseekV4RotaryEmbedding(config)
        self.window = config.sliding_window

    @oracle_run()
    def target_streams(self, ids: Sequence[int]) -> torch.Tensor:
        """Return the target's residual streams before their collapse, `[len(ids), hc, hidden]`."""
        seen: list[torch.Tensor] = []
        hook = self.target.model.model.layers[-1].register_forward_hook(
            lambda _module, _inputs, output: seen.append(output)
        )
        try:
            self.target.logits(ids)
        finally:
            hook.remove()
        return seen[0][0]

    @oracle_run()
    def forward(
        self, streams: torch.Tensor, next_ids: Sequence[int], first: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the draft layer over positions `first`..`first + T - 1`, as if none came before.

        Args:
            streams: `[T, hc, hidden]`, of the target or of an earlier draft step.
            next_ids: The token after each position, `[T]`.
            first: The first position.

        Returns:
            Draft streams `[T, hc, hidden]` and logits `[T, vocab]`.
        """
        length = len(next_ids)
        positions = torch.arange(first, first + length)[None]
        embedded = self.target.model.model.embed_tokens(torch.tensor([list(next_ids)]))
        embedded = embedded.masked_fill((positions == 0)[..., None], 0.0)
        joined = (self.norms["hnorm"](streams[None]) @ self.h_proj.T) + (
            self.norms["enorm"](embedded) @ self.e_proj.T
        ).unsqueeze(2)
        distance = positions[0][:, None] - positions[0][None]
        hidden = (distance < 0) | (distance >= self.window)
        mask = torch.zeros(length, length).masked_fill(hidden, float("-inf"))[None, None]
        out = self.block(
            joined,
            position_embeddings={"main": self.rotary(joined, positions, layer_type="main")},
            position_ids=positions,
            attention_mask=mask,
            input_ids=None,
            cache=None,
        )
        logits = self.target.model.lm_head(self.norms["norm"](self.collapse(out)))
        return out[0], logits[0]

    def draft(self, streams: torch.Tensor, ids: Sequence[int], count: int) -> list[int]:
        """Propose `count` tokens after `ids`.

        Args:
            streams: Target streams of all but the last id, `[len(ids) - 1, hc, hidden]`.
            ids: The sequence so far; its last token was sampled but not yet run by the target.
            count: Number of proposals; every one after the first runs on the draft's own streams.
        """
        next_ids = list(ids[1:])
        proposed: list[int] = []
        for _ in range(count):
            # One layer with a window: the last position sees no further back than that.
            first = max(0, len(next_ids) - self.window)
            out, logits = self.forward(streams[first:], next_ids[first:], first)
            proposed.append(int(logits[-1].argmax()))
            streams = torch.cat([streams, out[-1:]])
            next_ids.append(proposed[-1])
        return proposed

    def speculate(self, prompt: Sequence[int], count: int, width: int) -> Speculation:
        """Simulate greedy speculative decoding of `count` tokens with `width` drafts a round."""
        tokens = self.target.greedy(prompt, count + width + 1).tokens
        ids = [*prompt, *tokens]
        streams = self.target_streams(ids)
        rounds = accepted = 0
        done = 1
        while done < count:
            known = len(prompt) + done
            proposed = self.draft(streams[: known - 1], ids[:known], width)
            truth = ids[known : known + width]
            matched = next(
                (i for i, (a, b) in enumerate(zip(proposed, truth, strict=True)) if a != b), width
            )
            rounds, accepted, done = rounds + 1, accepted + matched, done + matched + 1
        return Speculation(rounds, rounds * width, accepted)
