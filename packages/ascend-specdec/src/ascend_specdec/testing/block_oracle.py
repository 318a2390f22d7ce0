"""A tiny target and its block draft in plain torch: what an engine must draft and accept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ascend_specdec.testing.dense_block_draft import DenseBlockDraft, DenseDraftConfig

__all__ = ["BlockOracle", "Speculation", "load_draft", "random_draft", "write_draft"]

_CONFIG = "draft.json"


@dataclass(frozen=True)
class Speculation:
    """What an engine counts: rounds, drafted tokens, and the drafts accepted at each place."""

    rounds: int
    accepted: tuple[int, ...]

    @property
    def drafted(self) -> int:
        """Drafted tokens of all rounds."""
        return self.rounds * len(self.accepted)


def random_draft(config: DenseDraftConfig, seed: int) -> DenseBlockDraft:
    """A draft with random weights, all of which matter for what it proposes."""
    draft = DenseBlockDraft(config)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in draft.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            parameter.data = 1 + 0.2 * noise
        elif name.endswith("base_kernel"):
            parameter.data += 0.3 * noise
        else:
            parameter.data = noise / parameter.shape[-1] ** 0.5
    return draft.requires_grad_(False)


def write_draft(draft: DenseBlockDraft, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Write a checkpoint that vLLM reads, and the config to build the same draft from."""
    folder.mkdir(parents=True, exist_ok=True)
    config = draft.config.to_json() | {"dtype": str(dtype).removeprefix("torch.")}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / _CONFIG).write_text(json.dumps(draft.description(), indent=1) + "\n")
    save_file(draft.checkpoint(dtype), folder / "model.safetensors", {"format": "pt"})
    return folder


def load_draft(folder: Path) -> DenseBlockDraft:
    """Read what :func:`write_draft` wrote, in float32."""
    given = json.loads((folder / _CONFIG).read_text())
    given["target_layers"] = tuple(given["target_layers"])
    draft = DenseBlockDraft(DenseDraftConfig(**given))
    tensors = load_file(folder / "model.safetensors")
    draft.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return draft.eval().requires_grad_(False)


class BlockOracle:
    """Greedy speculation with a target of transformers and a draft in plain torch.

    Args:
        target: transformers' model, in float32.
        draft: of that target.
    """

    def __init__(self, target: Any, draft: DenseBlockDraft) -> None:
        self.target, self.draft = target, draft
        self.embedding = target.get_input_embeddings().weight.detach()
        self.head = target.get_output_embeddings().weight.detach()

    @torch.no_grad()
    def aux(self, ids: torch.Tensor) -> torch.Tensor:
        """Outputs ``[..., T, m * H]`` of the target's layers that the draft reads.

        Of a layer with several residual streams, as DeepSeek-V4's, their average.
        """
        seen: dict[int, torch.Tensor] = {}

        def keep(layer: int) -> Any:
            def hook(module: Any, arguments: Any, output: Any) -> None:
                hidden = output[0] if isinstance(output, tuple) else output
                seen[layer] = hidden if hidden.ndim == ids.ndim + 1 else hidden.mean(dim=-2)

            return hook

        layers = self.target.model.layers
        wanted = self.draft.config.target_layers
        handles = [layers[i].register_forward_hook(keep(i)) for i in wanted]
        try:
            self.target(input_ids=ids, use_cache=False)
        finally:
            for handle in handles:
                handle.remove()
        return torch.cat([seen[i] for i in wanted], dim=-1)

    def speculate(self, prompt: Sequence[int], tokens: Sequence[int], drafts: int) -> Speculation:
        """Count rounds and accepted drafts while the target says ``tokens``.

        Args:
            prompt: of the request.
            tokens: what the target says, at least ``drafts`` more than are generated; greedy.
            drafts: of a round.
        """
        count = len(tokens) - drafts
        ids = [*prompt, *tokens]
        aux = self.aux(torch.tensor([ids]))[0]
        done, rounds = 1, 0
        accepted = [0] * drafts
        while done < count:
            known = len(prompt) + done
            found = self.draft.propose(
                aux[: known - 1], ids[known - 1], drafts, self.embedding, self.head
            )
            matched = 0
            while matched < drafts and found[matched] == ids[known + matched]:
                accepted[matched] += 1
                matched += 1
            rounds, done = rounds + 1, done + matched + 1
        return Speculation(rounds, tuple(accepted))
