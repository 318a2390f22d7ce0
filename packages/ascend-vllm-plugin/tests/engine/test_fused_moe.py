"""Models of vLLM's own with this project's layer of experts in them, in the engine on a CPU."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_models_deepseek.testing import FLOAT32_LOGITS_ATOL, random_prompt
from safetensors.torch import save_file

from .harness import DEFAULTS, EnginePool

pytestmark = pytest.mark.engine

VOCABULARY, COUNT, LAYERS, HIDDEN, INTER = 128, 4, 2, 64, 48
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "initializer_range": 0.2,
}
PROMPTS = [random_prompt(length, VOCABULARY, seed=length) for length in (1, 5, 70)]
RANK, ALPHA = 4, 12


def qwen3_moe() -> torch.nn.Module:
    """Softmax over seven experts, weights of the chosen ones as they are."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            **SIZES,
            intermediate_size=INTER,
            moe_intermediate_size=INTER,
            num_experts=7,
            norm_topk_prob=False,
        )
    )


def mixtral() -> torch.nn.Module:
    """Softmax over five experts, weights that sum to 1."""
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(
        MixtralConfig(**SIZES, intermediate_size=INTER, num_local_experts=5, sliding_window=None)
    )


@dataclass
class Served:
    """A model in vLLM and in transformers.

    Attributes:
        generate: greedily for prompts, with an adapter's request or None for each.
        oracle: transformers' model.
        folder: the checkpoint; adapters are written beside it.
        calls: tokens of each call of our layer of experts, filled as they come.
    """

    generate: Callable[[list[list[int]], list[Any]], list[Any]]
    oracle: Any
    folder: Path
    calls: list[int]

    def check(self, prompts: list[list[int]], outputs: list[Any]) -> None:
        """Hold what was generated against transformers."""
        for prompt, output in zip(prompts, outputs, strict=True):
            completion = output.outputs[0]
            tokens, rows = list(completion.token_ids), completion.logprobs
            got = torch.tensor(
                [[row[token].logprob for token in range(VOCABULARY)] for row in rows]
            )
            with torch.no_grad():
                expected = self.oracle(torch.tensor([[*prompt, *tokens[:-1]]])).logits[0, -COUNT:]
            assert float((got - expected).abs().max()) <= FLOAT32_LOGITS_ATOL
            assert expected.argmax(-1).tolist() == tokens


@pytest.fixture(scope="module", params=[qwen3_moe, mixtral])
def served(
    request: pytest.FixtureRequest,
    engines: EnginePool,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    """The model in an engine with our layer of experts; Mixtral's takes adapters."""
    from ascend_fused_moe.pipeline import MoERouterInput
    from ascend_fused_moe.vllm.fused_moe.cpu import CpuFusedMoERunner
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    engines.close()
    calls: list[int] = []
    routed = CpuFusedMoERunner._routed

    def listed(layer: CpuFusedMoERunner, given: MoERouterInput, lora: Any) -> torch.Tensor:
        calls.append(given.tokens)
        return routed(layer, given, lora)

    torch.manual_seed(0)
    oracle = request.param().eval()
    folder = tmp_path_factory.mktemp(request.param.__name__)
    oracle.save_pretrained(folder)
    params = SamplingParams(
        max_tokens=COUNT, temperature=0, logprobs=-1, detokenize=False, ignore_eos=True
    )
    settings = DEFAULTS | {"max_model_len": 128}
    if request.param is mixtral:
        settings |= {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuFusedMoERunner, "_routed", listed)
        llm = LLM(model=str(folder), **settings)

        def generate(prompts: list[list[int]], adapters: list[Any]) -> list[Any]:
            given: Any = [{"prompt_token_ids": ids} for ids in prompts]
            return llm.generate(given, params, use_tqdm=False, lora_request=adapters)

        yield Served(generate, oracle, folder, calls)
    llm.llm_engine.engine_core.shutdown()
    gc.collect()
    cleanup_dist_env_and_memory()


def test_a_model_of_vllm_equals_transformers(served: Served) -> None:
    """A prompt of one token and longer ones in one batch, greedy, with all logits."""
    served.calls.clear()
    outputs = served.generate(PROMPTS, [None] * len(PROMPTS))
    assert served.calls == [76] * LAYERS + [3] * LAYERS * (COUNT - 1)
    served.check(PROMPTS, outputs)


@pytest.mark.parametrize("served", [mixtral], indirect=True)
def test_adapters_of_experts(served: Served) -> None:
    """Requests of two adapters and of none in one batch, against weights that were added up."""
    from vllm.lora.request import LoRARequest

    changes = [adapter(served.folder / f"adapter{n}", seed=n) for n in (1, 2)]
    one, two = (LoRARequest(f"a{n}", n, str(served.folder / f"adapter{n}")) for n in (1, 2))
    prompts = [*PROMPTS, PROMPTS[1]]
    outputs = served.generate(prompts, [one, None, two, one])
    served.check([prompts[1]], [outputs[1]])
    for number, change in enumerate(changes):
        mine = [i for i, used in enumerate((1, 0, 2, 1)) if used == number + 1]
        with torch.no_grad():
            put(served.oracle, change, 1.0)
            served.check([prompts[i] for i in mine], [outputs[i] for i in mine])
            put(served.oracle, change, -1.0)


def adapter(folder: Path, seed: int) -> dict[str, torch.Tensor]:
    """Write an adapter of all experts as PEFT does, and return what it adds to their weights.

    `w1`, `w3` `[layers, experts, INTER, HIDDEN]` and `w2` `[layers, experts, HIDDEN, INTER]`.
    """
    new = torch.Generator().manual_seed(seed)
    tensors, added = {}, {}
    for part, rows, columns in (
        ("w1", INTER, HIDDEN),
        ("w2", HIDDEN, INTER),
        ("w3", INTER, HIDDEN),
    ):
        a = torch.randn(LAYERS, 5, RANK, columns, generator=new) * 0.2
        b = torch.randn(LAYERS, 5, rows, RANK, generator=new) * 0.2
        added[part] = ALPHA / RANK * b @ a
        for layer in range(LAYERS):
            for e in range(5):
                name = f"base_model.model.model.layers.{layer}.block_sparse_moe.experts.{e}.{part}"
                tensors[f"{name}.lora_A.weight"] = a[layer, e].contiguous()
                tensors[f"{name}.lora_B.weight"] = b[layer, e].contiguous()
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA}
    settings["target_modules"] = ["w1", "w2", "w3"]
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return added


def put(model: Any, added: dict[str, torch.Tensor], factor: float) -> None:
    """Add an adapter's products to the experts of transformers' Mixtral."""
    for layer, of in enumerate(model.model.layers):
        experts = of.mlp.experts
        experts.gate_up_proj.data += factor * torch.cat([added["w1"], added["w3"]], 2)[layer]
        experts.down_proj.data += factor * added["w2"][layer]
