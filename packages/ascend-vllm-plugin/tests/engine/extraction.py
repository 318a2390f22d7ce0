"""Hidden states of the target in files, on any device, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from ascend_models_deepseek.testing import FLOAT32_LOGITS_ATOL
from ascend_models_kimi.testing import K3Oracle
from ascend_ops_core.testing.language_models import random_prompt
from ascend_specdec.vllm.hidden_states import CONNECTOR, read_hidden_states

from .draft_widths import prompt_of
from .harness import Checkpoints, Engine, EnginePool
from .trained import story_prompt

LAYERS = (0, 2, 5)
"""In front of which the streams are taken; of six."""

EARLY = (1, 3)
"""The same, of models with fewer layers."""


def engine_of(
    engines: EnginePool,
    target: str,
    folder: Path,
    layers: tuple[int, ...] = LAYERS,
    **settings: Any,
) -> Engine:
    """An engine that writes the states of all requests to a folder."""
    states = {"eagle_aux_hidden_state_layer_ids": list(layers)}
    return engines.get(
        target,
        speculative_config={
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": states},
        },
        kv_transfer_config={
            "kv_connector": CONNECTOR,
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": str(folder)},
        },
        **({"max_model_len": 512, "enable_prefix_caching": True} | settings),
    )


def check_groups_of_caches(
    engine: Engine, checkpoints: Checkpoints, name: str, *, prefix: bool
) -> None:
    """A model whose caches lie in several groups: prompts in chunks, an answer, a prefix hit.

    Args:
        engine: of :func:`engine_of`.
        checkpoints: with the model's.
        name: of its spec.
        prefix: prefixes are cached.
    """
    from vllm import SamplingParams

    assert len(engine.scheduler.kv_cache_config.kv_cache_groups) > 1
    oracle, vocab = checkpoints.oracle(name), checkpoints.spec(name).vocab_size
    prompts = [prompt_of(oracle, vocab, length, 4) for length in (1, 40)]
    prompts += [random_prompt(530, vocab, seed=1)] * 2 if prefix else []
    params = SamplingParams(
        max_tokens=4,
        temperature=0,
        ignore_eos=True,
        detokenize=False,
        extra_args={"kv_transfer_params": {"include_output_tokens": True}},
    )
    given: list[Any] = [{"prompt_token_ids": prompt} for prompt in prompts]
    with engine.scheduling_at_most(30):
        outputs = engine.llm.generate(given[:2], params, use_tqdm=False)
    outputs += [engine.llm.generate([one], params, use_tqdm=False)[0] for one in given[2:]]
    engine.engine.step()
    assert not prefix or outputs[-1].num_cached_tokens
    for output in outputs:
        tokens = [*output.prompt_token_ids, *output.outputs[0].token_ids[:-1]]
        found = read_hidden_states(output.kv_transfer_params["hidden_states_path"], 1.0)
        assert found["token_ids"].tolist() == tokens
        expected = states_of(oracle, tokens)
        assert found["hidden_states"].shape == expected.shape
        assert float((found["hidden_states"] - expected).abs().max()) <= FLOAT32_LOGITS_ATOL


def states_of(oracle: Any, tokens: list[int]) -> torch.Tensor:
    """``[T, m, H]`` in front of :data:`EARLY` layers; of DeepSeek-V4 the streams' averages."""
    if isinstance(oracle, K3Oracle):
        passed = oracle.streams(tokens)
        return torch.stack([torch.stack([one[layer] for layer in EARLY]) for one in passed]).float()
    seen: dict[int, torch.Tensor] = {}

    def keep(layer: int) -> Any:
        def hook(module: Any, arguments: Any, named: Any) -> None:
            states = named["hidden_states"] if "hidden_states" in named else arguments[0]
            seen[layer] = (states.mean(dim=2) if states.dim() == 4 else states)[0]

        return hook

    layers = oracle.model.model.layers
    handles = [layers[i].register_forward_pre_hook(keep(i), with_kwargs=True) for i in EARLY]
    try:
        with torch.no_grad():
            oracle.model(input_ids=torch.tensor([tokens]), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack([seen[layer] for layer in EARLY], dim=1)


def check_states(engine: Engine, checkpoints: Checkpoints, target: str) -> None:
    """Chunks, a prefix hit, and answers: every state is that of transformers."""
    from vllm import SamplingParams

    oracle = checkpoints.oracle(target)
    prompts = [story_prompt(n, 200 + n) for n in (1, 90, 300, 129)]
    wishes = [{}, {"include_output_tokens": True}, {}, {"include_output_tokens": True}]
    params = [
        SamplingParams(
            max_tokens=5 + 3 * i,
            temperature=0,
            ignore_eos=True,
            detokenize=False,
            extra_args={"kv_transfer_params": wish} if wish else None,
        )
        for i, wish in enumerate(wishes)
    ]
    given = [{"prompt_token_ids": ids} for ids in prompts]
    with engine.scheduling_at_most(70):
        outputs = engine.llm.generate(given, params, use_tqdm=False)
    # The second run of the longest prompt finds it cached, states and all.
    again = [engine.llm.generate(given[2:3], params[2:3], use_tqdm=False)[0] for _ in range(2)]
    assert again[1].num_cached_tokens
    # In this process nobody steps the engine unless there are requests.
    engine.engine.step()
    for i, output in enumerate([*outputs, *again]):
        wish = wishes[i] if i < len(wishes) else wishes[2]
        prompt, said = list(output.prompt_token_ids), list(output.outputs[0].token_ids)
        assert said == oracle.greedy(prompt, len(said)).tokens
        tokens = prompt + said[:-1] if wish else prompt
        found = read_hidden_states(output.kv_transfer_params["hidden_states_path"], 1.0)
        assert found["token_ids"].tolist() == tokens
        with torch.no_grad():
            all_states = oracle.model(
                input_ids=torch.tensor([tokens]), output_hidden_states=True
            ).hidden_states
        expected = torch.stack([all_states[layer][0] for layer in LAYERS], dim=1)
        assert found["hidden_states"].shape == expected.shape
        difference = float((found["hidden_states"] - expected).abs().max())
        # The bar of logits is for values of about one; streams of some channels are larger.
        largest = max(1.0, float(expected.abs().max()))
        assert difference <= FLOAT32_LOGITS_ATOL * largest, (i, difference, largest)
