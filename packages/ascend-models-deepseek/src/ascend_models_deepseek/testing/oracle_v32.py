"""transformers as the reference for DeepSeek-V3.2 and GLM-5."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ascend_ops_core.testing.language_models import watching

from ascend_models_deepseek.testing.oracle import AmbiguousPromptError, Oracle
from ascend_models_deepseek.testing.oracle_v3 import V3MtpOracle, V3Oracle
from ascend_models_deepseek.testing.prompts import random_prompt
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
                self.clear_logits([*prompt, *self.greedy(prompt, count).tokens])
            except AmbiguousPromptError:
                continue
            return prompt
        raise AmbiguousPromptError(f"no clear prompt of {length} tokens from seed {seed}")


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

    def draft_config(self, config: Any) -> Any:
        """Return the target's config with one layer: with experts and an indexer of its own."""
        draft = copy.deepcopy(config)
        draft.num_hidden_layers, draft.first_k_dense_replace = 1, 0
        draft.layer_types, draft.mlp_layer_types = draft.layer_types[:1], ["sparse"]
        if hasattr(draft, "indexer_types"):
            draft.indexer_types = ["full"]
        return draft
