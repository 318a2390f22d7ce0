"""What stands for vLLM's proposers, and why."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.engine

TEXT = [1, 2, 3, 1, 2, 3, 1, 2]
LONGEST = 10


def config(**speculative: Any) -> Any:
    return SimpleNamespace(
        speculative_config=SimpleNamespace(**speculative),
        model_config=SimpleNamespace(max_model_len=LONGEST),
    )


def test_the_search_on_a_device_stops_at_the_longest_context() -> None:
    """Bug case 23, in vLLM's own method around our operator."""
    from ascend_specdec.vllm.proposers import DeviceNgramProposer

    given = config(prompt_lookup_min=2, prompt_lookup_max=3, num_speculative_tokens=5)
    proposer = DeviceNgramProposer(given, torch.device("cpu"))
    tokens = torch.zeros(3, LONGEST, dtype=torch.int32)
    tokens[:, :8] = torch.tensor(TEXT)
    lengths, chosen = torch.tensor([8, 8, 1], dtype=torch.int32), torch.tensor([True, False, True])
    drafts, counts = proposer.kernel(lengths, tokens, chosen)
    assert drafts.tolist() == [[3, 1, -1, -1, -1], [-1] * 5, [-1] * 5]
    assert counts.tolist() == [2, 0, 0]


def test_the_search_on_the_host_equals_vllm_s() -> None:
    import numpy as np
    from ascend_specdec.vllm.proposers import HostNgramProposer
    from vllm.v1.spec_decode import ngram_proposer as upstream

    given = config(prompt_lookup_min=1, prompt_lookup_max=3, num_speculative_tokens=4)
    proposer = HostNgramProposer(given)
    texts = np.random.default_rng(0).integers(0, 3, (40, LONGEST), dtype=np.int32)
    lengths = np.array([1 + i % LONGEST for i in range(40)], dtype=np.int32)
    sampled = [[0] if i % 5 else [] for i in range(40)]
    # The function below numba, which would compile for longer than this takes.
    search = upstream._find_longest_matched_ngram_and_propose_tokens.py_func
    expected = [
        search(text[:n], 1, 3, LONGEST, 4).tolist() if one else []
        for text, n, one in zip(texts, lengths, sampled, strict=True)
    ]
    assert proposer.propose(4, sampled, lengths, texts) == expected
    assert max(map(len, expected)) == 4


def test_upstream_still_drafts_beyond_the_longest_context() -> None:
    from vllm.v1.spec_decode.ngram_proposer_gpu import NgramGPUKernel

    tokens = torch.tensor([[*TEXT, 0, 0]])
    find = NgramGPUKernel._find_first_and_extract_all_n_parallel
    drafts = find(None, tokens, torch.tensor([8]), 2, 3, 5)
    assert int((drafts >= 0).sum()) > LONGEST - len(TEXT), (
        "vLLM has mended its search: see whether DeviceNgramProposer is still needed"
    )


def test_suffix_decoding_drafts_for_whom_a_token_was_sampled() -> None:
    import numpy as np
    from ascend_specdec.vllm.proposers import SuffixProposer

    proposer = SuffixProposer(
        config(
            suffix_decoding_max_tree_depth=4,
            suffix_decoding_max_spec_factor=2.0,
            suffix_decoding_min_token_prob=0.1,
            suffix_decoding_max_cached_requests=10,
        )
    )
    table = np.zeros((3, LONGEST), dtype=np.int32)
    table[:, :8] = TEXT
    names = ["a", "b", "c"]
    lengths = np.array([7, 7, 8])
    batch: Any = SimpleNamespace(
        num_tokens_no_spec=lengths,
        num_prompt_tokens=np.array([3, 3, 3]),
        token_ids_cpu=table,
        req_ids=names,
        req_id_to_index={name: i for i, name in enumerate(names)},
    )
    # The longest context has 10 tokens, and the last of them is not drafted.
    assert proposer.propose(5, batch, [[1], [], [2]]) == [[2, 3], [], [3]]
    assert proposer.cache.requests.keys() == {"a", "c"}
    batch.req_ids, batch.req_id_to_index = ["c"], {"c": 0}
    batch.num_tokens_no_spec = np.array([10])
    assert proposer.propose(5, batch, [[3]]) == [[]]
    assert proposer.cache.requests.keys() == {"c"}
    assert proposer.cache.answers.length == 5


def test_the_runner_takes_ours() -> None:
    import vllm.v1.spec_decode.ngram_proposer as host
    import vllm.v1.worker.gpu_model_runner as runner
    from ascend_specdec.vllm import proposers

    theirs = runner.SuffixDecodingProposer, runner.NgramProposerGPU, host.NgramProposer
    try:
        for _ in range(2):
            proposers.replace_proposers()
        assert runner.SuffixDecodingProposer is proposers.SuffixProposer
        assert runner.NgramProposerGPU is proposers.DeviceNgramProposer
        assert host.NgramProposer is proposers.HostNgramProposer
        assert sys.modules["vllm.config.speculative"].has_arctic_inference()
    finally:
        runner.SuffixDecodingProposer, runner.NgramProposerGPU, host.NgramProposer = theirs
