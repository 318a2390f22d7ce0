"""Proposers in the places of vLLM's that cannot be had here.

Upstream symbols (0.27.1): ``SuffixDecodingProposer`` of ``vllm.v1.spec_decode.suffix_decoding`` and
``has_arctic_inference`` of ``vllm.config.speculative``: vLLM leaves suffix decoding to the package
arctic-inference, which brings compiled code for other platforms. ``NgramProposerGPU`` of
``vllm.v1.spec_decode.ngram_proposer_gpu``: it compiles its search for CUDA when the engine starts,
and drafts beyond the longest context. ``NgramProposer`` of ``vllm.v1.spec_decode.ngram_proposer``:
it drafts the same as ours, but compiles its search anew in every process.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.config import VllmConfig
from vllm.v1.spec_decode.ngram_proposer import NgramProposer
from vllm.v1.spec_decode.ngram_proposer_gpu import NgramProposerGPU
from vllm.v1.worker.gpu_input_batch import InputBatch

from ascend_specdec.ops.ngram import propose_ngrams
from ascend_specdec.suffix import Limits, SuffixCache


class SuffixProposer:
    """Suffix decoding by :mod:`ascend_specdec.suffix`.

    Args:
        vllm_config: the engine's config.
    """

    def __init__(self, vllm_config: VllmConfig) -> None:
        config = vllm_config.speculative_config
        assert config is not None
        self.max_model_len = vllm_config.model_config.max_model_len
        limits = Limits(
            depth=config.suffix_decoding_max_tree_depth,
            factor=config.suffix_decoding_max_spec_factor,
            least_share=config.suffix_decoding_min_token_prob,
        )
        self.cache = SuffixCache(limits, config.suffix_decoding_max_cached_requests)

    def propose(
        self,
        num_speculative_tokens: int,
        input_batch: InputBatch,
        sampled_token_ids: list[list[int]],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Draft for each request of the batch.

        Args:
            num_speculative_tokens: most tokens to draft.
            input_batch: the runner's.
            sampled_token_ids: of this step; a request without any gets no drafts.
            slot_mappings: not needed.
        """
        drafts: list[list[int]] = []
        for i, sampled in enumerate(sampled_token_ids):
            length = int(input_batch.num_tokens_no_spec[i])
            # The last token that fits is sampled from the position in front of it.
            most = min(num_speculative_tokens, self.max_model_len - length - 1)
            if not sampled or most < 1:
                drafts.append([])
                continue
            request = input_batch.req_ids[i]
            text = input_batch.token_ids_cpu[i, :length]
            self.cache.follow(request, text, int(input_batch.num_prompt_tokens[i]))
            drafts.append(list(self.cache.propose(request, text, most).tokens))
        for request in self.cache.requests.keys() - input_batch.req_id_to_index.keys():
            self.cache.finish(request)
        return drafts

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: there is no model."""


class HostNgramProposer(NgramProposer):
    """vLLM's proposer with our operator as its search.

    Args:
        vllm_config: the engine's config.
    """

    def __init__(self, vllm_config: VllmConfig) -> None:
        config = vllm_config.speculative_config
        assert config is not None
        assert config.prompt_lookup_min is not None
        assert config.prompt_lookup_max is not None
        self.min_n, self.max_n = config.prompt_lookup_min, config.prompt_lookup_max
        self.max_model_len = vllm_config.model_config.max_model_len

    def propose(
        self,
        num_speculative_tokens: int,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Draft for each request of the batch.

        Args:
            num_speculative_tokens: most tokens to draft.
            sampled_token_ids: of this step; a request without any gets no drafts.
            num_tokens_no_spec: tokens of each request.
            token_ids_cpu: ``[R, L]``, the texts.
            slot_mappings: not needed.
        """
        requests = len(sampled_token_ids)
        lengths = torch.from_numpy(num_tokens_no_spec[:requests].astype(np.int32))
        sampled = torch.tensor([bool(one) for one in sampled_token_ids], dtype=torch.bool)
        drafts, counts = propose_ngrams(
            torch.from_numpy(token_ids_cpu[:requests]),
            torch.where(sampled, lengths, 0),
            shortest=self.min_n,
            longest=self.max_n,
            most=num_speculative_tokens,
            limit=self.max_model_len,
        )
        rows = zip(drafts.tolist(), counts.tolist(), strict=True)
        return [row[:count] for row, count in rows]


class DeviceNgramProposer(NgramProposerGPU):
    """vLLM's proposer with our operator as its search.

    Args:
        vllm_config: the engine's config.
        device: of the runner.
        runner: not needed.
    """

    def __init__(self, vllm_config: VllmConfig, device: torch.device, runner: Any = None) -> None:
        config = vllm_config.speculative_config
        assert config is not None
        assert config.prompt_lookup_min is not None
        assert config.prompt_lookup_max is not None
        self.vllm_config, self.device = vllm_config, device
        self.min_n, self.max_n = config.prompt_lookup_min, config.prompt_lookup_max
        self.k = config.num_speculative_tokens
        self.max_model_len = vllm_config.model_config.max_model_len

    def kernel(
        self, lengths: torch.Tensor, tokens: torch.Tensor, chosen: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Drafts ``[R, k]`` of chosen requests, -1 behind the last, and their numbers ``[R]``."""
        return propose_ngrams(
            tokens,
            torch.where(chosen, lengths, 0),
            shortest=self.min_n,
            longest=self.max_n,
            most=self.k,
            limit=self.max_model_len,
        )

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: there is no model."""


def replace_proposers() -> None:
    """Put ours where vLLM's runner takes its own from; may be called repeatedly.

    Raises:
        AttributeError: vLLM has no proposer of that name there any more.
    """
    config: Any = importlib.import_module("vllm.config.speculative")
    assert callable(config.has_arctic_inference)
    config.has_arctic_inference = lambda: True
    runner = sys.modules.get("vllm.v1.worker.gpu_model_runner")
    for module, name, ours in (
        ("suffix_decoding", "SuffixDecodingProposer", SuffixProposer),
        ("ngram_proposer", "NgramProposer", HostNgramProposer),
        ("ngram_proposer_gpu", "NgramProposerGPU", DeviceNgramProposer),
    ):
        place = importlib.import_module(f"vllm.v1.spec_decode.{module}")
        getattr(place, name)
        setattr(place, name, ours)
        # The runner has taken over the name if it was imported before.
        if runner is not None and hasattr(runner, name):
            setattr(runner, name, ours)
