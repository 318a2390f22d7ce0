"""vLLM's HTTP server with the packaged checkpoint, through the `openai` client."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from ascend_models_deepseek.testing import Oracle
from ascend_vllm_plugin.cli.demo import packaged_model
from ascend_vllm_plugin.cli.server import VllmServer

pytestmark = pytest.mark.serve

NAME = "tiny"
PROMPT = "Once upon a time"
COUNT = 48
START_TIMEOUT_S = 240
SERVE_ARGUMENTS = [
    "--dtype",
    "float32",
    "--enforce-eager",
    "--max-model-len",
    "512",
    "--max-num-seqs",
    "4",
    "--kv-cache-memory-bytes",
    str(1 << 26),
    "--speculative-config",
    json.dumps({"method": "mtp", "num_speculative_tokens": 2}),
]


@pytest.fixture(scope="module")
def server() -> Iterator[VllmServer]:
    with VllmServer(packaged_model(), arguments=SERVE_ARGUMENTS, served_name=NAME) as server:
        server.wait_ready(START_TIMEOUT_S)
        yield server
        server.check_alive()


@pytest.fixture(scope="module")
def client(server: VllmServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_file=str(packaged_model() / "tokenizer.json"))


@pytest.fixture(scope="module")
def expected(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Prompt ids, and the ids that transformers continues them with."""
    prompt = tokenizer.encode(PROMPT)
    return prompt, Oracle(packaged_model()).greedy(prompt, COUNT).tokens


def test_completion_equals_transformers(
    client: openai.OpenAI, expected: tuple[list[int], list[int]], tokenizer: Any
) -> None:
    prompt, tokens = expected
    for given in (prompt, PROMPT):
        completion = client.completions.create(
            model=NAME,
            prompt=given,
            max_tokens=COUNT,
            temperature=0,
            extra_body={"ignore_eos": True, "skip_special_tokens": False},
        )
        assert completion.choices[0].text == tokenizer.decode(tokens)
        assert completion.usage is not None
        assert completion.usage.completion_tokens == COUNT
        assert completion.usage.prompt_tokens == len(prompt)


def test_streamed_completion_equals_the_whole_one(
    client: openai.OpenAI, expected: tuple[list[int], list[int]], tokenizer: Any
) -> None:
    stream = client.completions.create(
        model=NAME,
        prompt=expected[0],
        max_tokens=COUNT,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True, "skip_special_tokens": False},
    )
    pieces = [chunk.choices[0].text for chunk in stream if chunk.choices]
    assert len(pieces) > 4
    assert "".join(pieces) == tokenizer.decode(expected[1])


def test_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    arguments: dict[str, Any] = {
        "model": NAME,
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": 24,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**arguments)
    message = whole.choices[0].message
    assert message.role == "assistant"
    assert message.content
    stream = client.chat.completions.create(**arguments, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == message.content


def test_logprobs_are_those_of_the_text(client: openai.OpenAI) -> None:
    completion = client.completions.create(
        model=NAME, prompt=PROMPT, max_tokens=8, temperature=0, logprobs=5
    )
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    for chosen, best in zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert best is not None
        assert chosen == pytest.approx(max(best.values()))
        assert math.exp(chosen) <= 1.0


def test_concurrent_requests_equal_a_lone_one(client: openai.OpenAI) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def complete(prompt: str) -> str:
        done = client.completions.create(model=NAME, prompt=prompt, max_tokens=16, temperature=0)
        return done.choices[0].text

    prompts = [PROMPT, "The cat", "In the morning the", "A little girl went to"]
    alone = [complete(prompt) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(complete, prompts)) == alone


def test_drafts_are_accepted(server: VllmServer, client: openai.OpenAI) -> None:
    before = server.speculation_counters()
    client.completions.create(
        model=NAME,
        prompt=PROMPT,
        max_tokens=COUNT,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    after = server.speculation_counters()
    assert after["drafted"] > before["drafted"]
    assert after["accepted"] > before["accepted"]


def test_a_prompt_that_is_too_long_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="512"):
        client.completions.create(model=NAME, prompt=[5] * 600, max_tokens=4)


def test_the_packaged_checkpoint_has_original_names() -> None:
    config = json.loads((Path(packaged_model()) / "config.json").read_text())
    assert config["num_nextn_predict_layers"] == 1
    assert set(config["compress_ratios"]) == {0, 4, 128}
