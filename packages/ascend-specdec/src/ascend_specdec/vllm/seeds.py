"""A request's seed decides its tokens, whatever its neighbours, chunks and drafts.

Upstream symbols (0.27.1):

- ``GPUModelRunner._bookkeeping_sync`` moves the generator of a request whose prompt is not complete
  back by the four numbers that a sample takes on CUDA. A CPU's generator has no such counter: a
  seeded request whose prompt comes in chunks ends the engine. Here the generator's state is put
  back, on any device.
- ``compute_probs_and_sample_next_token`` of ``vllm.v1.spec_decode.llm_base_proposer`` draws drafts
  without regard to seeds, so that neighbours decide what is drafted, and with it what is accepted.
- ``TopKTopPSampler.forward_cpu`` of ``vllm.v1.sample.ops.topk_topp_sampler`` draws all tokens of a
  step without regard to seeds, unless all of its requests have one.
"""

from __future__ import annotations

import hashlib
import importlib
from typing import Any

import torch

GREEDY_BELOW = 1e-5
"""Temperatures below are greedy (vLLM: ``v1/sample/sampler.py: _SAMPLING_EPS``)."""

_last_states: dict[int, tuple[bytes, int]] = {}


def sample_drafts(
    logits: torch.Tensor, sampling_metadata: Any, use_fp64_gumbel: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a drafted token of each request at its temperature.

    Args:
        logits: ``[R, V]``, changed.
        sampling_metadata: vLLM's, of the R requests.
        use_fp64_gumbel: draw the noise in float64.

    Returns:
        Tokens ``[R]``, and the probabilities ``[R, V]`` float32 that they were drawn from; the
        logits, where all requests are greedy.
    """
    if sampling_metadata.all_greedy:
        return logits.argmax(dim=-1), logits
    temperature = sampling_metadata.temperature
    greedy = temperature < GREEDY_BELOW
    logits.div_(torch.where(greedy, 1.0, temperature).view(-1, 1))
    probs = logits.softmax(dim=-1, dtype=torch.float32)
    noise = torch.empty_like(probs, dtype=torch.float64 if use_fp64_gumbel else torch.float32)
    noise.exponential_()
    for row, generator in _draft_generators(sampling_metadata.generators).items():
        noise[row].exponential_(generator=generator)
    drawn = (probs / noise).argmax(dim=-1)
    return torch.where(greedy, probs.argmax(dim=-1), drawn), probs


def _draft_generators(generators: dict[int, torch.Generator]) -> dict[int, torch.Generator]:
    """A generator for each of those, of numbers that the given ones never return.

    It follows from the given one's state, which only the request's own tokens move, and from how
    often that state was seen, which tells the drafts of a step apart.
    """
    found, seen = {}, {}
    for row, generator in generators.items():
        state = hashlib.blake2b(generator.get_state().numpy().tobytes(), digest_size=8).digest()
        before, times = _last_states.get(id(generator), (b"", 0))
        times = times + 1 if state == before else 0
        seen[id(generator)] = (state, times)
        digest = hashlib.blake2b(state + times.to_bytes(4, "little"), digest_size=7).digest()
        own = torch.Generator(device=generator.device)
        found[row] = own.manual_seed(int.from_bytes(digest, "little"))
    _last_states.clear()
    _last_states.update(seen)
    return found


def keep_seeds() -> None:
    """Replace them for this process; may be called repeatedly.

    Raises:
        AttributeError: vLLM has no method or function of that name there any more.
    """
    proposer = importlib.import_module("vllm.v1.spec_decode.llm_base_proposer")
    getattr(proposer, "compute_probs_and_sample_next_token")  # noqa: B009, it is what must be there
    proposer.compute_probs_and_sample_next_token = sample_drafts  # type: ignore[attr-defined]
    runner: Any = importlib.import_module("vllm.v1.worker.gpu_model_runner").GPUModelRunner
    if runner._sample.__module__ == __name__:
        return
    sampler: Any = importlib.import_module("vllm.v1.sample.ops.topk_topp_sampler").TopKTopPSampler
    sample, bookkeep = runner._sample, runner._bookkeeping_sync
    draw_on_cpu = sampler.forward_cpu

    def sample_and_put_back(self: Any, *args: Any, **kwargs: Any) -> Any:
        states = [(one, one.get_state()) for one in _of_incomplete_prompts(self).values()]
        output = sample(self, *args, **kwargs)
        for generator, state in states:
            generator.set_state(state)
        return output

    def bookkeep_without_offsets(self: Any, *args: Any, **kwargs: Any) -> Any:
        hidden = _of_incomplete_prompts(self)
        for row in hidden:
            del self.input_batch.generators[row]
        try:
            return bookkeep(self, *args, **kwargs)
        finally:
            self.input_batch.generators.update(hidden)

    def draw_by_seeds(
        self: Any, logits: torch.Tensor, generators: dict[int, torch.Generator], k: Any, p: Any
    ) -> Any:
        draw = self.forward_native if generators else draw_on_cpu.__get__(self)
        return draw(logits, generators, k, p)

    sampler.forward_cpu = draw_by_seeds
    runner._sample = sample_and_put_back
    runner._bookkeeping_sync = bookkeep_without_offsets


def _of_incomplete_prompts(runner: Any) -> dict[int, torch.Generator]:
    """Generators of requests whose sample of this step does not count, by row."""
    discarded = runner.discard_request_mask.np[: runner.input_batch.num_reqs]
    return {row: g for row, g in runner.input_batch.generators.items() if discarded[row]}
