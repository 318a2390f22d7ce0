"""Hidden states that vLLM extracts, against those of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from .harness import Checkpoints, EnginePool
from .trained import CHECKPOINTS, story_prompt

pytestmark = pytest.mark.engine

LAYERS = [1, 3, 5]


def test_extracted_streams_are_those_of_transformers(
    engines: EnginePool, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory
    from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
        load_hidden_states,
    )

    engines.close()
    llm = LLM(
        model=str(CHECKPOINTS / "llama"),
        dtype="float32",
        enforce_eager=True,
        skip_tokenizer_init=True,
        max_model_len=256,
        max_num_batched_tokens=64,
        kv_cache_memory_bytes=1 << 26,
        speculative_config={
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": LAYERS}},
        },
        kv_transfer_config={
            "kv_connector": "ExampleHiddenStatesConnector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": str(tmp_path)},
        },
    )
    prompts = [story_prompt(n, n) for n in (5, 150, 31)]
    try:
        outputs = llm.generate(
            [{"prompt_token_ids": ids} for ids in prompts],
            SamplingParams(max_tokens=1, temperature=0, detokenize=False),
            use_tqdm=False,
        )
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        cleanup_dist_env_and_memory()
    model = checkpoints.oracle("stories-llama").model
    for prompt, output in zip(prompts, outputs, strict=True):
        found = load_hidden_states(output.kv_transfer_params["hidden_states_path"])
        assert found["token_ids"].tolist() == prompt
        with torch.no_grad():
            streams = model(torch.tensor([prompt]), output_hidden_states=True).hidden_states
        expected = torch.stack([streams[i][0] for i in LAYERS], dim=1)
        torch.testing.assert_close(found["hidden_states"], expected, rtol=1e-4, atol=1e-3)
