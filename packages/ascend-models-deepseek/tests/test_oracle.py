"""The tiny checkpoints and the transformers oracle, checked without vLLM."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ascend_models_deepseek.testing import (
    SELF_CONSISTENCY_ATOL,
    SPECS,
    AmbiguousPromptError,
    MtpOracle,
    Oracle,
    TinyV4Spec,
    random_prompt,
    selection_matters,
    write_checkpoint,
)
from safetensors.torch import load_file

PROMPT_LENGTH = 260


@pytest.fixture(scope="module", params=sorted(SPECS))
def spec(request: pytest.FixtureRequest) -> TinyV4Spec:
    return SPECS[request.param]


@pytest.fixture(scope="module")
def folder(spec: TinyV4Spec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(spec, tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Oracle:
    return Oracle(folder)


@pytest.fixture(scope="module")
def prompt(spec: TinyV4Spec) -> list[int]:
    return random_prompt(PROMPT_LENGTH, spec.vocab_size, seed=spec.seed)


def expected_names(spec: TinyV4Spec) -> set[str]:
    """List the published names from the shape alone, independently of the renaming table."""
    hc = ("fn", "base", "scale")
    names = {"embed.weight", "head.weight", "norm.weight", *(f"hc_head_{p}" for p in hc)}
    blocks = [(f"layers.{i}.", ratio) for i, ratio in enumerate(spec.compress_ratios)]
    if spec.mtp != "none":
        blocks.append(("mtp.0.", 0))
        names |= {f"mtp.0.{n}.weight" for n in ("enorm", "hnorm", "norm", "e_proj", "h_proj")}
        names |= {f"mtp.0.hc_head_{p}" for p in hc}
    for number, (block, ratio) in enumerate(blocks):
        names |= {block + f"hc_{kind}_{p}" for kind in ("attn", "ffn") for p in hc}
        names |= {block + "attn_norm.weight", block + "ffn_norm.weight", block + "attn.attn_sink"}
        matrices = ("wq_a", "q_norm", "wq_b", "wkv", "kv_norm", "wo_a", "wo_b")
        names |= {f"{block}attn.{n}.weight" for n in matrices}
        compressors = {0: [], 4: ["attn.", "attn.indexer."], 128: ["attn."]}[ratio]
        for place in compressors:
            parts = ("ape", "norm.weight", "wkv.weight", "wgate.weight")
            names |= {f"{block}{place}compressor.{p}" for p in parts}
        if ratio == 4:
            names |= {f"{block}attn.indexer.{n}.weight" for n in ("wq_b", "weights_proj")}
        routed = [f"experts.{e}" for e in range(spec.n_routed_experts)]
        names |= {
            f"{block}ffn.{e}.w{i}.weight" for e in [*routed, "shared_experts"] for i in (1, 2, 3)
        }
        names |= {f"{block}ffn.gate.weight"}
        hashed = number < spec.num_hash_layers
        names |= {f"{block}ffn.gate.{'tid2eid' if hashed else 'bias'}"}
    return names


def test_original_names_are_complete(spec: TinyV4Spec, folder: Path) -> None:
    assert set(load_file(folder / "model.safetensors")) == expected_names(spec)


def test_config_uses_original_keys_only(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    hf_only = {"layer_types", "mlp_layer_types", "compress_rates", "rope_parameters"}
    assert not hf_only & set(config)
    assert {"compress_ratios", "num_hash_layers", "rope_scaling", "qk_rope_head_dim"} <= set(config)


def test_same_spec_gives_same_bytes(spec: TinyV4Spec, folder: Path, tmp_path: Path) -> None:
    again = write_checkpoint(spec, tmp_path)
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    other = write_checkpoint(replace(spec, seed=spec.seed + 100), tmp_path)
    assert (other / "model.safetensors").read_bytes() != (folder / "model.safetensors").read_bytes()


def test_transformers_reads_every_value_back(oracle: Oracle, folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    state = oracle.model.state_dict()
    assert torch.equal(state["lm_head.weight"], stored["head.weight"])
    assert torch.equal(state["model.hc_head.hc_fn"], stored["hc_head_fn"])
    for name, tensor in state.items():
        if not name.endswith("mlp.experts.gate_up_proj"):
            continue
        layer = re.search(r"\d+", name)
        assert layer is not None
        for expert in range(tensor.shape[0]):
            base = f"layers.{layer[0]}.ffn.experts.{expert}"
            both = torch.cat([stored[f"{base}.w1.weight"], stored[f"{base}.w3.weight"]])
            assert torch.equal(tensor[expert], both)
    total = sum(t.numel() for n, t in stored.items() if not n.startswith("mtp."))
    assert sum(t.numel() for t in state.values()) == total


def test_oracle_refuses_a_checkpoint_it_cannot_read_exactly(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    stored = load_file(folder / "model.safetensors")
    stored["layers.0.attn.wq_zzz.weight"] = stored.pop("layers.0.attn.wq_a.weight")
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ValueError, match="q_a_proj"):
        Oracle(tmp_path)


def test_selection_changes_logits(oracle: Oracle, folder: Path, prompt: list[int]) -> None:
    assert selection_matters(folder, prompt)
    short = prompt[: 4 * oracle.model.config.index_topk]
    assert oracle.selection_effect(short) == 0.0


@pytest.mark.parametrize("chunk", [1, 3, 7, 64, 128, 129])
def test_chunked_equals_full(oracle: Oracle, prompt: list[int], chunk: int) -> None:
    ids = prompt if chunk > 1 else prompt[:140]
    difference = (oracle.chunked_logits(ids, chunk) - oracle.logits(ids)).abs().max()
    assert float(difference) < SELF_CONSISTENCY_ATOL


def test_teacher_forcing_equals_greedy(oracle: Oracle, prompt: list[int]) -> None:
    for length in (1, 5, 127):
        greedy = oracle.greedy(prompt[:length], 24)
        picked = oracle.picked_logits(prompt[:length], greedy.tokens)
        assert picked.argmax(-1).tolist() == greedy.tokens
        assert float((picked - greedy.logits).abs().max()) < SELF_CONSISTENCY_ATOL


def test_a_sequence_that_rounding_decides_is_refused(tmp_path: Path) -> None:
    """Here transformers' own chunked run differs from its full one by 0.03."""
    oracle = Oracle(write_checkpoint(SPECS["mixed"], tmp_path))
    prompt = random_prompt(255, 512, seed=4) + random_prompt(305, 512, seed=51)
    with pytest.raises(AmbiguousPromptError, match="use another prompt seed"):
        oracle.picked_logits(prompt, [5])


def test_greedy_is_not_degenerate(oracle: Oracle, prompt: list[int]) -> None:
    greedy = oracle.greedy(prompt, 48)
    assert len(set(greedy.tokens)) > 20
    assert greedy.smallest_margin > 1e-4


def test_aligned_drafts_are_accepted_more_often_than_random_ones(tmp_path: Path) -> None:
    prompt = random_prompt(40, 512)
    accepted = {}
    for mode in ("aligned", "random"):
        spec = replace(SPECS["mixed"], mtp=mode)
        target = Oracle(write_checkpoint(spec, tmp_path / mode))
        accepted[mode] = MtpOracle(target).speculate(prompt, 32, 2).accepted
    assert accepted["aligned"] >= 6
    assert accepted["random"] <= 2


def test_draft_needs_a_draft_layer(tmp_path: Path) -> None:
    target = Oracle(write_checkpoint(SPECS["wide_window"], tmp_path))
    with pytest.raises(ValueError, match=r"no mtp\.0"):
        MtpOracle(target)


def test_bfloat16_keeps_control_tensors(spec: TinyV4Spec, tmp_path: Path) -> None:
    stored = load_file(write_checkpoint(spec, tmp_path, torch.bfloat16) / "model.safetensors")
    assert stored["layers.0.attn.wq_a.weight"].dtype == torch.bfloat16
    assert stored["layers.0.attn.attn_sink"].dtype == torch.float32
    assert stored["hc_head_base"].dtype == torch.float32
    Oracle(tmp_path).logits([1, 2, 3])


def test_bad_values_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"mtp='often'.*aligned"):
        TinyV4Spec(mtp="often")
    with pytest.raises(ValueError, match=r"float16.*bfloat16"):
        write_checkpoint(TinyV4Spec(), tmp_path, torch.float16)
