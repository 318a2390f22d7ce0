"""Drafts for Llama and Qwen3: tokens are those of the target, whatever is drafted and how.

The drafts are trained, so most of these tests also pass through accepted tokens.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_models_deepseek.testing import random_prompt

from .harness import Checkpoints, Engine, EnginePool, Request, assert_all_match
from .speculation import (
    MAX_MODEL_LEN,
    Way,
    accepted,
    batch,
    check_drafts_behind_chunks,
    check_every_width,
    check_full_context,
    check_mixed_sampling,
    check_planned,
    check_preemption,
    check_ragged_chunks_and_prefix,
    check_stops,
    check_told,
    drafting,
    engine_of,
    repeating_prompt,
)
from .told import Stubborn
from .trained import CHECKPOINTS, story_prompt

pytestmark = pytest.mark.engine

LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
PROBABILISTIC = Way("stories-llama", "eagle3", 3, {"draft_sample_method": "probabilistic"})
GREEDY_DRAFTS = Way("stories-qwen3", "eagle3", 7)
TEXT = Way("stories-llama", "ngram", 7, LOOKUP)
WAYS = [
    TEXT,
    Way("stories-llama", "suffix", 7),
    Way("stories-llama", "medusa", 4),
    PROBABILISTIC,
    GREEDY_DRAFTS,
    Way("stories-qwen3", "ngram", 2, LOOKUP),
    Way("stories-qwen3", "suffix", 1),
]

SMALL_CACHE: dict[str, Any] = {"num_gpu_blocks_override": 48, "block_size": 16}
"""Enough for one request of the longest context, and for no batch of them."""

BINS = 40


@pytest.fixture(params=WAYS, ids=str, scope="module")
def way(request: pytest.FixtureRequest) -> Way:
    return request.param


@pytest.fixture
def engine(engines: EnginePool, way: Way) -> Engine:
    return engine_of(engines, way, **SMALL_CACHE)


@pytest.mark.parametrize(
    "check",
    [
        check_ragged_chunks_and_prefix,
        check_full_context,
        check_mixed_sampling,
        check_stops,
        check_preemption,
    ],
    ids=lambda check: check.__name__.removeprefix("check_"),
)
def test_tokens_are_the_target_s(
    engine: Engine, checkpoints: Checkpoints, way: Way, check: Any
) -> None:
    check(engine, checkpoints, way)


def test_every_number_of_drafts(engine: Engine, checkpoints: Checkpoints, way: Way) -> None:
    if way.width < 7:
        return
    oracle = checkpoints.oracle(way.target)
    requests = [Request(story_prompt(1, 3), 6), Request(repeating_prompt(oracle, 12), 12)]
    check_every_width(engine, requests, [oracle.greedy(r.prompt, r.count).tokens for r in requests])


def test_drafts_behind_a_prompt_in_chunks(engine: Engine, way: Way) -> None:
    if way is GREEDY_DRAFTS:
        check_drafts_behind_chunks(engine, story_prompt(60, 8), 12)


def test_drafts_that_are_all_right_or_the_least_likely(
    engine: Engine, checkpoints: Checkpoints, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way is TEXT:
        check_told(engine, checkpoints, way, monkeypatch)


def test_memory_is_what_was_planned(engine: Engine, checkpoints: Checkpoints, way: Way) -> None:
    check_planned(engine, checkpoints.folder(way.target), "cpu")


def places_in_distribution(
    checkpoints: Checkpoints, way: Way, prompts: list[list[int]], tokens: list[list[int]], seed: int
) -> torch.Tensor:
    """Where each sampled token lies in the target's distribution, as a number in [0, 1).

    The distribution is that of transformers, given the tokens before, the most probable token
    first; a token's share is spread evenly by chance. If tokens are drawn from it, the numbers
    are uniform and independent, whatever the prompts.
    """
    oracle = checkpoints.oracle(way.target)
    generator = torch.Generator().manual_seed(seed)
    found = []
    for prompt, drawn in zip(prompts, tokens, strict=True):
        logits = oracle.picked_logits(prompt, drawn).double()
        chance, order = logits.softmax(dim=-1).sort(dim=-1, descending=True)
        place = (order == torch.tensor(drawn)[:, None]).long().argmax(dim=-1, keepdim=True)
        before = (chance.cumsum(dim=-1) - chance).gather(1, place)
        share = chance.gather(1, place)
        found.append(before + share * torch.rand(len(drawn), 1, generator=generator).double())
    return torch.cat(found).flatten()


@pytest.mark.parametrize("way", [PROBABILISTIC, GREEDY_DRAFTS], ids=str, indirect=True)
def test_sampled_tokens_follow_the_target_s_distribution(
    engines: EnginePool, checkpoints: Checkpoints, way: Way
) -> None:
    """Chi-square over 20,000 draws; the bound is exceeded once in a million by chance.

    Half of the prompts are stories, for which drafts are good, the others random tokens.
    """
    engine = engine_of(engines, way, max_num_seqs=100)
    before = accepted(engine)
    assert_law_of_the_target(engine, checkpoints, way)
    assert accepted(engine) > before


@pytest.mark.parametrize("way", [PROBABILISTIC, GREEDY_DRAFTS], ids=str, indirect=True)
def test_drafts_that_heed_no_text_leave_the_distribution_alone(
    engines: EnginePool, checkpoints: Checkpoints, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn from one law that has nothing to do with the target's, and told to be, or not."""
    engine = engine_of(engines, way, max_num_seqs=100)
    told = "draft_sample_method" in way.settings
    law = torch.linspace(0, 9, 1024).softmax(dim=0)
    drafter = engine.runner.drafter
    monkeypatch.setattr(drafter, "propose", Stubborn(drafter, law, told=told))
    with drafting(engine, 2):
        assert_law_of_the_target(engine, checkpoints, way)


def assert_law_of_the_target(engine: Engine, checkpoints: Checkpoints, way: Way) -> None:
    from vllm import SamplingParams

    prompts = [
        story_prompt(30, 100 + i) if i % 2 else random_prompt(30, 1024, seed=i) for i in range(100)
    ]
    outputs = engine.llm.generate(
        [{"prompt_token_ids": ids} for ids in prompts],
        [
            SamplingParams(
                max_tokens=200, temperature=1.0, seed=i, ignore_eos=True, detokenize=False
            )
            for i in range(100)
        ],
        use_tqdm=False,
    )
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    places = places_in_distribution(checkpoints, way, prompts, tokens, seed=1)
    assert len(places) == 20_000
    seen = torch.histc(places, bins=BINS, min=0, max=1)
    expected = len(places) / BINS
    # The quantile of chi-square with 39 degrees of freedom.
    assert float(((seen - expected) ** 2 / expected).sum()) < 97


@pytest.mark.parametrize("way", [PROBABILISTIC, GREEDY_DRAFTS], ids=str, indirect=True)
def test_a_seed_decides_whatever_the_neighbours(engine: Engine) -> None:
    """Alone, among others, and in chunks, which end the engine with vLLM's own runner."""
    seeded = [
        Request(story_prompt(25, 60 + i), 40, sampling={"temperature": 1.0, "seed": 7 + i})
        for i in range(3)
    ]
    alone = [engine.run([request])[0].tokens for request in seeded]
    assert len({tuple(tokens) for tokens in alone}) == 3
    others = batch([(33, 21, 0), (5, 50, 0)], seed=70, temperature=0.9)
    mixed = engine.run([seeded[2], others[0], seeded[0], others[1], seeded[1]])
    assert [mixed[i].tokens for i in (2, 4, 0)] == alone
    # Enough for all drafts of all requests: with fewer drafts a request draws other numbers.
    assert engine.llm.reset_prefix_cache()
    with engine.scheduling_at_most(3 * (GREEDY_DRAFTS.width + 1) + 1):
        chunked = [one.tokens for one in engine.run(seeded)]
    assert chunked == alone


def rotated_checkpoint(source: Path, directory: Path) -> Path:
    """The same Llama with its residual stream rotated, and the rotation beside it."""
    from safetensors.torch import load_file, save_file

    tensors = {name: t.double() for name, t in load_file(source / "model.safetensors").items()}
    width = tensors["model.norm.weight"].shape[0]
    torch.manual_seed(3)
    q = torch.linalg.qr(torch.randn(width, width, dtype=torch.float64)).Q
    readers = {
        "input_layernorm": ("q_proj", "k_proj", "v_proj"),
        "post_attention_layernorm": ("gate_proj", "up_proj"),
    }
    for name, gain in list(tensors.items()):
        stem, _, norm = name.removesuffix(".weight").rpartition(".")
        for kind in readers.get(norm, ()):
            inside = "self_attn" if kind in readers["input_layernorm"] else "mlp"
            tensors[f"{stem}.{inside}.{kind}.weight"] *= gain
        if norm == "norm":
            tensors["lm_head.weight"] *= gain
        if norm in ("norm", *readers):
            tensors[name] = torch.ones_like(gain)
    for name, value in tensors.items():
        kind = name.removesuffix(".weight").rpartition(".")[2]
        if kind in ("o_proj", "down_proj"):
            tensors[name] = q.T @ value
        elif value.dim() == 2:
            tensors[name] = value @ q
    directory.mkdir()
    (directory / "config.json").write_text((source / "config.json").read_text())
    save_file({name: t.float().contiguous() for name, t in tensors.items()},
              directory / "model.safetensors", metadata={"format": "pt"})  # fmt: skip
    save_file({"global_rotation": q.float().contiguous()}, directory / "rotation.bin")
    place = {"rotation_map": {"global_rotation": "rotation.bin"}}
    description = directory / "quant_model_description.json"
    description.write_text(json.dumps({"optional": {"quarot": place}}))
    return directory


def test_a_draft_follows_a_rotated_target(
    engines: EnginePool, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    """The rotated pair writes the same tokens, and as many drafts are right."""
    from safetensors.torch import load_file, save_file

    draft = tmp_path / "draft"
    shutil.copytree(CHECKPOINTS / "llama-eagle3", draft)
    # In float32, so that what is rotated is not rounded to bfloat16.
    tensors = load_file(draft / "model.safetensors")
    wide = {n: t.float() if t.is_floating_point() else t for n, t in tensors.items()}
    save_file(wide, draft / "model.safetensors", metadata={"format": "pt"})
    way = Way("stories-llama", "eagle3", 3, {"model": str(draft)})
    requests = batch([(30, 40, 0), (80, 40, 0), (5, 40, 0)], seed=80)
    settings: dict[str, Any] = {"max_model_len": MAX_MODEL_LEN, "speculative_config": way.config}
    counts = []
    engines.close()
    rotated = rotated_checkpoint(CHECKPOINTS / "llama", tmp_path / "rotated")
    for folder in (CHECKPOINTS / "llama", rotated):
        engine = Engine(folder, **settings)
        try:
            before = accepted(engine)
            results = engine.run(requests)
            counts.append(accepted(engine) - before)
        finally:
            engine.close()
        assert_all_match(checkpoints.oracle(way.target), requests, results)
    assert counts[0] > 60
    assert counts[1] == counts[0]


def test_a_draft_with_a_wider_residual(
    engines: EnginePool, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    """Random weights, so hardly any draft is right, and no token may differ."""
    from safetensors.torch import load_file, save_file

    source = CHECKPOINTS / "llama-eagle3"
    config = json.loads((source / "config.json").read_text())
    config |= {"architectures": ["LlamaForCausalLMVwnEagle3"], "vwn_m": 4, "vwn_r": 1.5}
    (tmp_path / "config.json").write_text(json.dumps(config))
    width, wider, chunks = config["hidden_size"], int(config["hidden_size"] * 1.5), 4
    tensors = load_file(source / "model.safetensors")
    for name in [n for n in tensors if "layernorm" in n or "hidden_norm" in n]:
        tensors[name.replace("midlayer.", "midlayer.pre_vwn_layer.")] = tensors.pop(name)
    tensors["midlayer.post_attention_layernorm.weight"] = torch.ones(width)
    tensors.pop("midlayer.pre_vwn_layer.post_attention_layernorm.weight")
    tensors["midlayer.pre_attention_layernorm.weight"] = torch.ones(width)
    torch.manual_seed(0)
    for kind, rows in (("q", width), ("k", width // 2), ("v", width // 2)):
        tensors[f"midlayer.self_attn.{kind}_proj.weight"] = torch.randn(rows, width) / 12
    for name, outputs, inputs in (
        ("pre_vwn_layer.upward", wider, width),
        ("downward_and_forgot", width + wider, wider),
        ("upward_after_attn", wider, width),
        ("downward_and_forgot_after_attn", width + wider, wider),
        ("upward_after_mlp", wider, width),
        ("downward", width, wider),
    ):
        weight = torch.randn(outputs // chunks, inputs // chunks) / (inputs // chunks) ** 0.5
        tensors[f"midlayer.{name}.weight"] = weight
    tensors["midlayer.pre_vwn_layer.fc.weight"] = torch.randn(width, 2 * width) / 16
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    way = Way("stories-llama", "eagle3", 2, {"model": str(tmp_path)})
    engine = engine_of(engines, way, **SMALL_CACHE)
    assert type(engine.runner.drafter.model).__name__ == "Eagle3VwnLlamaForCausalLM"
    requests = batch([(30, 20, 0), (80, 20, 1)], seed=90)
    assert_all_match(checkpoints.oracle(way.target), requests, engine.run(requests))
    check_planned(engine, checkpoints.folder(way.target), "cpu")
