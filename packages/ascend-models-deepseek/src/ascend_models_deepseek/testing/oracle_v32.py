"""transformers as the reference for DeepSeek-V3.2 and GLM-5."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from ascend_ops_core.testing.language_models import Said, random_prompt, watching

from ascend_models_deepseek.testing.oracle import AmbiguousPromptError, Oracle
from ascend_models_deepseek.testing.oracle_v3 import V3MtpOracle, V3Oracle
from ascend_models_deepseek.testing.selection import NarrowestGap
from ascend_models_deepseek.testing.tiny_v32 import classes_of


class V32Oracle(V3Oracle):
    """A checkpoint folder run by transformers' own model, whose indexers are watched as well."""

    def model_class(self) -> Any:
        """Return transformers' class, whatever a running vLLM has registered for the name."""
        config = json.loads((self.directory / "config.json").read_text())
        return classes_of(config["model_type"])[1]

    @contextmanager
    def watched(self) -> Iterator[NarrowestGap]:
        """Observe every top-k of uncached forwards, of routers and of indexers."""
        indexers = [m for m in self.model.modules() if hasattr(m, "index_topk")]
        with super().watched() as gap:
            forwards = [module.forward for module in indexers]
            for module in indexers:
                module.forward = watching(gap, module.forward)
            try:
                yield gap
            finally:
                for module, forward in zip(indexers, forwards, strict=True):
                    module.forward = forward

    @contextmanager
    def eight_bit_keys(self, codes: torch.dtype, scales: torch.dtype) -> Iterator[None]:
        """Let every indexer score queries and keys of eight bits, as a device family keeps them.

        Args:
            codes: int8 or float8_e4m3fn.
            scales: Dtype of the one scale of a row.
        """
        indexers = [m for m in self.model.modules() if hasattr(m, "index_topk")]
        forwards = [module.forward for module in indexers]
        for module in indexers:
            module.forward = scoring_rounded(module.forward, codes, scales)
        said, self.said = self.said, Said()
        try:
            yield
        finally:
            self.said = said
            for module, forward in zip(indexers, forwards, strict=True):
                module.forward = forward

    def clear_prompt(self, length: int, count: int, seed: int = 0) -> list[int]:
        """Return a random prompt with which rounding decides no selection of a greedy run.

        Args:
            length: Tokens of the prompt.
            count: Tokens that will be generated.
            seed: Of the first prompt that is tried.

        Raises:
            AmbiguousPromptError: None of twenty prompts will do.
        """
        vocab = self.model.config.vocab_size
        for attempt in range(20):
            prompt = random_prompt(length, vocab, seed=seed + 1000 * attempt)
            try:
                self.picked_logits(prompt, self.greedy(prompt, count + 1).tokens)
            except AmbiguousPromptError:
                continue
            return prompt
        raise AmbiguousPromptError(f"no clear prompt of {length} tokens from seed {seed}")


def scoring_rounded(forward: Any, codes: torch.dtype, scales: torch.dtype) -> Any:
    """Wrap an indexer's forward so that its first product is of rows rounded to eight bits.

    Rows are turned by a normed Hadamard matrix before that, which changes no exact product.
    """
    largest = 127.0 if codes == torch.int8 else torch.finfo(codes).max

    def rounded(rows: torch.Tensor, kept: torch.dtype) -> torch.Tensor:
        turned = rows @ hadamard_matrix(rows.shape[-1])
        scale = (turned.abs().amax(-1, keepdim=True) / largest).to(kept).float()
        value = turned / scale.clamp_min(torch.finfo(torch.float32).tiny)
        value = value.clamp(-largest, largest)
        return (value.round() if codes == torch.int8 else value.to(codes).float()) * scale

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        product = torch.matmul

        def first(query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
            torch.matmul = product
            turned = rounded(keys.transpose(-1, -2), scales).transpose(-1, -2)
            return product(rounded(query, torch.float32), turned)

        torch.matmul = first  # type: ignore[assignment]
        try:
            return forward(*args, **kwargs)
        finally:
            torch.matmul = product

    return wrapped


def hadamard_matrix(size: int) -> torch.Tensor:
    """Return Sylvester's matrix of a power of two, its rows of length one."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / size**0.5


class V32MtpOracle(V3MtpOracle):
    """Greedy drafts of the draft layer, whose attention selects tokens like the target's."""

    def __init__(self, target: Oracle) -> None:
        super().__init__(target)
        block = self.layer.mtp_block
        forward = block.forward

        def hidden(*args: Any, **kwargs: Any) -> Any:
            out = forward(*args, **kwargs)
            # GLM-5's layers return their selection beside the hidden states.
            return out[0] if isinstance(out, tuple) else out

        block.forward = hidden

    def draft(self, streams: torch.Tensor, ids: Sequence[int], count: int) -> list[int]:
        """Propose `count` tokens after `ids`; see `MtpOracle.draft`.

        With `index_share_for_mtp_iteration` what the last token has selected in the first step is
        what the last one attends to in every later step.
        """
        if not getattr(self.target.model.config, "index_share_for_mtp_iteration", False):
            return super().draft(streams, ids, count)
        indexer = self.layer.mtp_block.self_attn.indexer
        forward = indexer.forward
        first: list[torch.Tensor] = []

        def repeating(*args: Any, **kwargs: Any) -> Any:
            found = forward(*args, **kwargs)
            if not first:
                first.append(found[:, -1].clone())
            found = found.clone()
            # Places that a longer context adds name a token twice, which selects it once.
            found[:, -1] = first[0][:, :1]
            found[:, -1, : first[0].shape[1]] = first[0]
            return found

        indexer.forward = repeating
        try:
            return super().draft(streams, ids, count)
        finally:
            indexer.forward = forward

    def draft_config(self, config: Any) -> Any:
        """Return the target's config with one layer: with experts and an indexer of its own."""
        draft = copy.deepcopy(config)
        draft.num_hidden_layers, draft.first_k_dense_replace = 1, 0
        draft.layer_types, draft.mlp_layer_types = draft.layer_types[:1], ["sparse"]
        if hasattr(draft, "indexer_types"):
            draft.indexer_types = ["full"]
        return draft
