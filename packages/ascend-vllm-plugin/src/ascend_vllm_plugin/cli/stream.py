"""One streamed completion from an OpenAI-style server, timed as the text arrives."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx


class CompletionError(RuntimeError):
    """The server refused the request, or broke the stream off. The text holds its answer."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What arrived. Times in seconds; tokens as the server counts them.

    first_token_s: from sending the request to the first token (mostly the prompt's work).
    decode_s: from the first token to the last.
    """

    text: str
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str | None
    first_token_s: float
    decode_s: float

    @property
    def tokens_per_second(self) -> float | None:
        """Decode speed after the first token; None when fewer than two tokens came."""
        if self.completion_tokens < 2 or self.decode_s <= 0:
            return None
        return (self.completion_tokens - 1) / self.decode_s


def stream_completion(
    url: str,
    *,
    model: str,
    prompt: str,
    max_tokens: int,
    temperature: float,
    seed: int | None = None,
    timeout: float = 300.0,
    on_text: Callable[[str], None] = lambda text: None,
) -> Completion:
    """POST to `url`/v1/completions with streaming on; `on_text` gets each piece as it comes.

    timeout: longest silence in seconds. Raises CompletionError on any other answer than a stream
    that ends with its usage figures.
    """
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if seed is not None:
        body["seed"] = seed
    pieces: list[str] = []
    usage: dict[str, int] | None = None
    finish_reason: str | None = None
    sent = first = last = time.perf_counter()
    try:
        # trust_env=False: a proxy set for the internet must not come between.
        with httpx.stream(
            "POST", f"{url}/v1/completions", json=body, timeout=timeout, trust_env=False
        ) as response:
            if response.status_code != httpx.codes.OK:
                answer = response.read().decode(errors="replace")
                raise CompletionError(f"the server answered {response.status_code}: {answer}")
            for event in _events(response.iter_lines()):
                if "error" in event:
                    raise CompletionError(f"the server broke off: {event['error']}")
                usage = event.get("usage") or usage
                for choice in event.get("choices", ()):
                    finish_reason = choice.get("finish_reason") or finish_reason
                    # A choice without text carries tokens as well: part of a character, say.
                    last = time.perf_counter()
                    first = last if not pieces else first
                    pieces.append(choice.get("text") or "")
                    if pieces[-1]:
                        on_text(pieces[-1])
    except httpx.HTTPError as error:
        raise CompletionError(f"the connection to {url} failed: {error!r}") from error
    if usage is None:
        raise CompletionError("the stream ended without usage figures: the server broke it off")
    return Completion(
        text="".join(pieces),
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        finish_reason=finish_reason,
        first_token_s=first - sent,
        decode_s=last - first,
    )


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        field, _, data = line.partition(":")
        if field == "data" and data.strip() != "[DONE]":
            yield json.loads(data)
