"""Proves an exported checkpoint with transformers' own DeepSeek-V4, and shows what it writes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import DeepseekV4ForCausalLM, PreTrainedTokenizerFast

from tools.tiny_model import checkpoint
from tools.tiny_model.data import documents, encode
from tools.tiny_model.model import TinyDeepseekV4
from tools.tiny_model.train import Scores, evaluate, held_out_rows

PROMPTS = (
    "Once upon a time there was a brave fox called",
    "One windy morning in autumn, a curious rabbit called Mia woke up early.",
    "Tom and the Golden Key\n\n",
)
REQUESTS = ("Tell me a story about a brave turtle and a red lantern.", "Hello!")
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Sample:
    """One continuation by transformers; ``acceptance`` is the MTP layer's agreement with it."""

    prompt: str
    text: str
    acceptance: float


@dataclass(frozen=True)
class Report:
    """What :func:`check` found; differences are the largest ones between logits, in float32."""

    logit_difference: float
    selection_effect: float
    scores: Scores
    samples: list[Sample]

    def to_json(self) -> str:
        """The report as indented JSON."""
        return json.dumps(asdict(self), indent=2)


def load_transformers(directory: Path) -> DeepseekV4ForCausalLM:
    """The checkpoint in transformers' model, float32; fails if a tensor is missing or unknown."""
    model, info = DeepseekV4ForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    problems = {k: v for k, v in info.items() if v}
    if problems:
        raise ValueError(f"transformers could not load {directory} fully: {problems}")
    return model.eval()


@torch.no_grad()
def largest_difference(
    ours: TinyDeepseekV4, theirs: DeepseekV4ForCausalLM, rows: list[torch.Tensor]
) -> float:
    """Largest absolute difference of the logits over sequences of shape [1, S]."""
    return max(float((ours(ids).main - theirs(ids).logits).abs().max()) for ids in rows)


@torch.no_grad()
def selection_effect(model: TinyDeepseekV4, ids: torch.Tensor) -> float:
    """How much the logits change when the indexer's top-k choice is switched off."""
    chosen = model(ids).main
    for attention in model.attentions():
        attention.select = False
    everything = model(ids).main
    for attention in model.attentions():
        attention.select = True
    return float((chosen - everything).abs().max())


@torch.no_grad()
def acceptance(model: TinyDeepseekV4, ids: torch.Tensor, start: int) -> float:
    """Share of the tokens from ``start`` on that the MTP layer would have drafted, given the text.

    For a greedy continuation this is the acceptance rate of one draft token.
    """
    drafted = model(ids).mtp.argmax(-1)[0, start - 2 : -1]
    return float((drafted == ids[0, start:]).float().mean())


@torch.no_grad()
def continue_text(
    ours: TinyDeepseekV4,
    theirs: DeepseekV4ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompt: str,
    chat: bool,
    temperature: float = 0.0,
    tokens: int = 240,
) -> Sample:
    """A continuation by transformers: greedy, or sampled at ``temperature``."""
    if chat:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
    else:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 0.95}
    out = theirs.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        **(sampling if temperature > 0 else {"do_sample": False}),
    )
    start = ids.shape[1]
    text = tokenizer.decode(out[0, start:], skip_special_tokens=True)
    return Sample(prompt, text, round(acceptance(ours, out, start), 4))


def check(directory: Path, score_batches: int = 25) -> Report:
    """Load ``directory`` both ways, compare, score held-out stories, and let transformers write.

    Raises:
        ValueError: a tensor is missing or unknown, or the logits differ by more than 1e-4.
    """
    ours, theirs = checkpoint.load(directory), load_transformers(directory)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    source = documents(seed=20_011, held_out=True)
    texts = [encode(tokenizer.backend_tokenizer, next(source)) for _ in range(6)]
    joined = [token for text in texts[:3] for token in text][:900]
    rows = [torch.tensor([text]) for text in [*texts, joined]]
    difference = largest_difference(ours, theirs, rows)
    if difference > TOLERANCE:
        raise ValueError(
            f"logits differ from transformers by {difference:.2e}, more than {TOLERANCE}"
        )
    torch.manual_seed(0)
    samples = [continue_text(ours, theirs, tokenizer, p, chat=False) for p in PROMPTS]
    samples += [continue_text(ours, theirs, tokenizer, p, chat=True) for p in REQUESTS]
    samples.append(continue_text(ours, theirs, tokenizer, REQUESTS[0], True, temperature=0.7))
    return Report(
        logit_difference=difference,
        selection_effect=selection_effect(ours, rows[-1]),
        scores=evaluate(ours, held_out_rows(tokenizer.backend_tokenizer), score_batches),
        samples=samples,
    )
