"""Documents, tokenizer and batches for the demo model."""

from __future__ import annotations

import itertools
import json
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from tools.tiny_model.config import TinyConfig
from tools.tiny_model.stories import Story, stories

BOS, EOS, USER, STORY = SPECIAL = ("<|bos|>", "<|eos|>", "<|user|>", "<|story|>")
CHAT_TEMPLATE = (
    "{%- set asked = messages | selectattr('role', 'equalto', 'user') | list -%}"
    "{{- bos_token + '<|user|>' + asked[-1]['content'] | trim + '<|story|>' -}}"
)
_HELD_OUT = 20


def is_held_out(story: Story) -> bool:
    """True for the one title in twenty (a hero's name with a treasure) that is never trained on."""
    return zlib.crc32(story.title.encode()) % _HELD_OUT == 0


def document(story: Story, rng: random.Random) -> str:
    """A story as the model reads it: answering a request, or plain, or plain with its title."""
    draw = rng.random()
    if draw < 0.45:
        return f"{BOS}{USER}{story.request}{STORY}{story.title}\n\n{story.text}{EOS}"
    if draw < 0.8:
        return f"{BOS}{story.text}{EOS}"
    return f"{BOS}{story.title}\n\n{story.text}{EOS}"


def documents(seed: int, held_out: bool) -> Iterator[str]:
    """An endless stream of documents, either of held-out titles only or of all the others."""
    rng = random.Random(seed + 1)
    for story in stories(seed):
        if is_held_out(story) == held_out:
            yield document(story, rng)


def train_tokenizer(vocab_size: int, seed: int, count: int = 8000) -> Tokenizer:
    """A byte-level BPE of ``vocab_size`` entries; it puts ``<|bos|>`` before what it encodes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    source = itertools.islice(stories(seed), count)
    tokenizer.train_from_iterator((f"{s.request}\n{s.title}\n\n{s.text}" for s in source), trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(
            f"the stories give only {tokenizer.get_vocab_size()} BPE entries, not {vocab_size}: "
            "lower vocab_size"
        )
    bos = tokenizer.token_to_id(BOS)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, bos)]
            ),
        ]
    )
    return tokenizer


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of a document that carries its own special tokens."""
    return tokenizer.encode(text, add_special_tokens=False).ids


def batches(
    tokenizer: Tokenizer, seed: int, batch: int, length: int, held_out: bool = False
) -> Iterator[torch.Tensor]:
    """Batches [batch, length] of token ids; every row starts with a document and is then filled."""
    source = documents(seed, held_out)
    while True:
        rows = []
        for _ in range(batch):
            row: list[int] = []
            while len(row) < length:
                row += encode(tokenizer, next(source))
            rows.append(row[:length])
        yield torch.tensor(rows)


def balanced_hash_table(tokenizer: Tokenizer, cfg: TinyConfig, seed: int) -> torch.Tensor:
    """Expert ids [vocab, K]: frequent tokens first, each to the experts with the least traffic."""
    sample = next(batches(tokenizer, seed, 64, 512))
    traffic = torch.bincount(sample.flatten(), minlength=cfg.vocab_size) + 0.1
    load = torch.zeros(cfg.n_routed_experts)
    table = torch.zeros(cfg.vocab_size, cfg.num_experts_per_tok, dtype=torch.long)
    noise = torch.Generator().manual_seed(seed)
    for token in traffic.argsort(descending=True).tolist():
        jitter = torch.rand(load.shape, generator=noise) * 1e-3
        chosen = (load + jitter).topk(cfg.num_experts_per_tok, largest=False).indices
        table[token] = chosen
        load[chosen] += traffic[token]
    return table


def save_tokenizer(tokenizer: Tokenizer, cfg: TinyConfig, directory: Path) -> None:
    """Write the tokenizer, its chat template, and the generation defaults."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": EOS,
        "additional_special_tokens": [USER, STORY],
        "model_max_length": cfg.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    generation = {
        "bos_token_id": cfg.bos_token_id,
        "eos_token_id": cfg.eos_token_id,
        "pad_token_id": cfg.eos_token_id,
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.95,
    }
    for name, content in (
        ("tokenizer_config.json", settings),
        ("generation_config.json", generation),
    ):
        (directory / name).write_text(json.dumps(content, indent=2) + "\n")
