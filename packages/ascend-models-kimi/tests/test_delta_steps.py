"""Steps of the gated delta rule as vLLM schedules them, against a plain loop over each request.

The metadata builder and the order of a step live in ascend_attention, whose own tests run without
vLLM.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_attention.state_caches import StateKind, kda_state
from ascend_attention.vllm.linear import (
    AscendGDNAttentionMetadataBuilder,
    DeltaHeads,
    DeltaInputs,
    StepRequests,
    gated_delta_step,
)
from ascend_ops_core import InvalidInputError
from ascend_ops_core.testing.tolerances import assert_close
from vllm.v1.kv_cache_interface import MambaSpec

HEADS = DeltaHeads(2, 4, 8, 16)
WIDTH = 4
MOST = 8


@dataclass
class Tokens:
    """Inputs of some tokens."""

    mixed: torch.Tensor
    decay: torch.Tensor
    beta: torch.Tensor

    @classmethod
    def random(cls, count: int) -> Tokens:
        decay = -torch.rand(count, HEADS.heads, HEADS.key_dim) * 2
        beta = torch.rand(count, HEADS.heads)
        return cls(torch.randn(count, HEADS.channels), decay, beta)

    def __getitem__(self, rows: slice) -> Tokens:
        return Tokens(self.mixed[rows], self.decay[rows], self.beta[rows])

    @staticmethod
    def joined(parts: list[Tokens]) -> Tokens:
        return Tokens(
            torch.cat([one.mixed for one in parts]),
            torch.cat([one.decay for one in parts]),
            torch.cat([one.beta for one in parts]),
        )


@dataclass
class Request:
    """One request: its tokens, how far it is, and what the last step accepted."""

    tokens: Tokens
    prompt: int
    slots: list[int]
    expected: torch.Tensor
    done: int = 0
    accepted: int = 1
    drafts: int = field(default=-1)

    @property
    def left(self) -> int:
        return self.tokens.mixed.shape[0] - self.done


def definition(tokens: Tokens, weight: torch.Tensor) -> torch.Tensor:
    """``[T, H, V]`` of one request, token by token."""
    count = tokens.mixed.shape[0]
    padded = torch.cat([torch.zeros(WIDTH - 1, HEADS.channels), tokens.mixed]).double()
    state = torch.zeros(HEADS.heads, HEADS.value_dim, HEADS.key_dim, dtype=torch.float64)
    out = torch.empty(count, HEADS.heads, HEADS.value_dim, dtype=torch.float64)
    group = HEADS.heads // HEADS.key_heads
    for t in range(count):
        sums = (weight.double() * padded[t : t + WIDTH]).sum(0)
        row = sums * sums.sigmoid()
        query, key, value = HEADS.split(row[None])
        query, key = (
            (one[0] / (one[0].square().sum(-1, keepdim=True) + 1e-6).sqrt()).repeat_interleave(
                group, 0
            )
            for one in (query, key)
        )
        state = state * tokens.decay[t].double().exp()[:, None]
        seen = (state * key[:, None]).sum(-1)
        change = tokens.beta[t].double()[:, None] * (value[0] - seen)
        state = state + change[:, :, None] * key[:, None]
        out[t] = (state * query[:, None] * HEADS.scale).sum(-1)
    return out


def builder_of(drafts: int, aligned: bool = False, block: int = 64) -> Any:
    kind = kda_state(num_heads=4, head_dim=8, conv_width=WIDTH, dtype=torch.float32, drafts=drafts)
    spec = MambaSpec(
        shapes=kind.shapes,
        dtypes=kind.dtypes,
        block_size=block,
        num_speculative_blocks=drafts,
    )
    config = SimpleNamespace(
        cache_config=SimpleNamespace(mamba_cache_mode="align" if aligned else "none"),
        scheduler_config=SimpleNamespace(max_num_seqs=MOST),
        compilation_config=SimpleNamespace(
            static_forward_context={"layer": SimpleNamespace(kv_cache=())}
        ),
    )
    given: Any = config
    return AscendGDNAttentionMetadataBuilder(spec, ["layer"], given, torch.device("cpu"))


def common_of(lengths: list[int], lens: list[int], table: torch.Tensor) -> Any:
    starts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).int()
    seq_lens = torch.tensor(lens, dtype=torch.int32)
    return SimpleNamespace(
        num_reqs=len(lengths),
        query_start_loc_cpu=starts,
        query_start_loc=starts,
        seq_lens=seq_lens,
        seq_lens_cpu_upper_bound=seq_lens,
        block_table_tensor=table,
        max_query_len=max(lengths),
    )


class Engine:
    """Requests in steps that mix prompts' chunks, decodes and drafts."""

    def __init__(self, drafts: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.random = random.Random(seed)
        self.drafts = drafts
        self.builder = builder_of(drafts)
        self.weight = torch.randn(WIDTH, HEADS.channels) / 2
        free = list(range(1, 1 + 6 * (1 + drafts) + 3))
        self.random.shuffle(free)
        self.requests = []
        for prompt, more in ((1, 12), (3, 10), (64, 6), (70, 9), (130, 4), (2, 1)):
            tokens = Tokens.random(prompt + more)
            own = [free.pop() for _ in range(1 + drafts)]
            expected = definition(tokens, self.weight).float()
            self.requests.append(Request(tokens, prompt, own, expected))
        self.unused = [0, *free]
        rows = WIDTH - 1 + drafts
        slots = 1 + 6 * (1 + drafts) + 3
        self.states = SimpleNamespace(
            conv_states=torch.full((slots, rows, HEADS.channels), float("nan")),
            recurrent_states=torch.full(
                (slots, HEADS.heads, HEADS.value_dim, HEADS.key_dim), float("nan")
            ),
        )
        layers = self.builder.vllm_config.compilation_config.static_forward_context
        layers["layer"].kv_cache = (self.states.conv_states, self.states.recurrent_states)
        self.accepted = torch.ones(MOST, dtype=torch.int32)

    def step(self) -> None:
        """Schedule some requests, compare what comes out, and accept some drafts."""
        chosen = [r for r in self.requests if r.left and self.random.random() < 0.8]
        if not chosen:
            return
        self.random.shuffle(chosen)
        parts, lengths, news = [], [], []
        for request in chosen:
            part, new = self._schedule(request)
            parts.append(part)
            lengths.append(part.mixed.shape[0])
            news.append(new)
        drafted = any(r.drafts > 0 for r in chosen)
        # Padding requests stand at the end, with the null slot.
        table = torch.tensor([*(r.slots for r in chosen), [0] * (1 + self.drafts)]).int()
        lens = [r.done + n for r, n in zip(chosen, lengths, strict=True)]
        common = common_of([*lengths, 0], [*lens, 0], table)
        self.accepted[: len(chosen)] = torch.tensor([r.accepted for r in chosen])
        given = {}
        if drafted:
            drafts = torch.tensor([*(r.drafts for r in chosen), -1])
            given = {
                "num_accepted_tokens": self.accepted[: len(chosen) + 1],
                "num_decode_draft_tokens_cpu": drafts,
            }
        meta = self.builder.build(0, common, **given).get()
        tokens = Tokens.joined(parts)
        out = torch.full((sum(lengths) + 3, HEADS.heads, HEADS.value_dim), float("nan"))
        inputs = DeltaInputs(tokens.mixed, tokens.decay, tokens.beta, self.weight)
        gated_delta_step(HEADS, self.states, inputs, meta, out)
        assert not out[sum(lengths) :].any()
        begin = 0
        for request, length, new in zip(chosen, lengths, news, strict=True):
            found = out[begin : begin + new]
            expected = request.expected[request.done : request.done + new]
            assert_close(found, expected)
            request.accepted = new if request.drafts >= 0 else 1
            request.done += new
            begin += length

    def _schedule(self, request: Request) -> tuple[Tokens, int]:
        """A request's tokens of the step, and how many of them will count."""
        request.drafts = -1
        if request.done < request.prompt:
            new = self.random.choice([1, 2, 63, 64, 65, 200])
            new = min(new, request.prompt - request.done)
            if request.prompt == 1 and self.drafts and self.random.random() < 0.7:
                # vLLM puts drafts behind a prompt of one token, none of which is right.
                request.drafts = self.drafts
                return Tokens.joined([request.tokens[:1], Tokens.random(self.drafts)]), 1
            return request.tokens[request.done : request.done + new], new
        most = min(self.drafts, request.left - 1)
        drafts = self.random.randint(0, most)
        if not drafts:
            return request.tokens[request.done : request.done + 1], 1
        request.drafts = drafts
        good = self.random.randint(1, 1 + drafts)
        wrong = Tokens.random(1 + drafts - good)
        right = request.tokens[request.done : request.done + good]
        return Tokens.joined([right, wrong]), good


@pytest.mark.parametrize("drafts", [0, 1, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_any_schedule_gives_the_definition(drafts: int, seed: int) -> None:
    engine = Engine(drafts, seed)
    for _ in range(400):
        if not any(request.left for request in engine.requests):
            break
        engine.step()
    assert not any(request.left for request in engine.requests)
    assert bool(engine.states.conv_states[engine.unused].isnan().all())
    assert bool(engine.states.recurrent_states[engine.unused].isnan().all())


def test_which_requests_decode() -> None:
    requests = StepRequests(
        lengths=[1, 3, 1, 2, 64, 0, 1, 3],
        known=[9, 9, 0, 9, 64, 5, 7, 0],
        drafts=[-1, 2, -1, -1, -1, 0, 0, 2],
    )
    assert requests.decodes() == [0, 1, 6, 7]
    assert requests.prefills() == [2, 3, 4]
    assert requests.fresh() == [2, 7]


def test_segments_that_lie_together_are_slices() -> None:
    table = torch.arange(1, 7, dtype=torch.int32).view(6, 1)
    common = common_of([1, 1, 5, 0, 2, 0], [9, 4, 5, 0, 8, 0], table)
    meta = builder_of(0).build(0, common).get()
    assert meta.num_tokens == 9
    decodes, prefills = meta.decodes, meta.prefills
    assert (decodes.tokens, prefills.tokens) == (slice(0, 2), slice(2, 9))
    assert decodes.starts.tolist() == [0, 1, 2]
    assert prefills.starts.tolist() == [0, 5, 7]
    assert (decodes.slots.tolist(), prefills.slots.tolist()) == ([[1], [2]], [3, 5])
    assert prefills.continued.tolist() == [False, True]
    assert (decodes.most_tokens, prefills.most_tokens) == (1, 5)
    assert decodes.accepted is None


def test_states_at_the_end_of_the_last_block() -> None:
    """With aligned prefixes the step's states stand behind the last block that it reaches."""
    table = torch.arange(20, dtype=torch.int32).view(2, 10)
    common = common_of([1, 5], [64, 65], table)
    meta = builder_of(2, aligned=True).build(0, common).get()
    assert meta.decodes.slots.tolist() == [[0, 1, 2]]
    assert meta.prefills.slots.tolist() == [11]


def test_a_captured_step_reads_buffers() -> None:
    builder = builder_of(1)
    table = torch.tensor([[3, 4], [5, 6], [0, 0]], dtype=torch.int32)
    meta = builder.build_for_cudagraph_capture(common_of([2, 2, 2], [2, 2, 2], table)).get()
    assert meta.prefills is None
    assert meta.decodes.tokens is None
    assert meta.decodes.starts.tolist() == [0, 2, 4, 6]
    builder.build(
        0,
        common_of([2, 2], [20, 9], table[:2]),
        num_accepted_tokens=torch.tensor([2, 0]).int(),
        num_decode_draft_tokens_cpu=torch.tensor([1, 1]),
    )
    assert meta.decodes.accepted.tolist() == [2, 1, 1]


def test_what_a_state_takes() -> None:
    kind = kda_state(num_heads=6, head_dim=8, conv_width=4, dtype=torch.bfloat16, ranks=3, drafts=2)
    assert kind == StateKind(4, 48, 2, 8, 8, torch.bfloat16, 2)
    assert kind.shapes == ((5, 48), (2, 8, 8))
    assert kind.dtypes == (torch.bfloat16, torch.float32)
    assert (kind.slot_bytes, kind.slots) == (5 * 48 * 2 + 2 * 8 * 8 * 4, 3)
    with pytest.raises(InvalidInputError, match="4 tensor-parallel ranks"):
        kda_state(num_heads=6, head_dim=8, conv_width=4, dtype=torch.bfloat16, ranks=4)
