"""The trained tiny targets and their drafts, and prompts that they have something to say about."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from tokenizers import Tokenizer

from tools.tiny_model.data import documents, encode

CHECKPOINTS = Path(__file__).parents[4] / "tools/tiny_model/checkpoints"


@dataclass(frozen=True)
class TrainedSpec:
    """A checkpoint of `tools/tiny_model`, by the name of its folder."""

    folder: str


TRAINED_SPECS = {f"stories-{name}": TrainedSpec(name) for name in ("llama", "qwen3")}


def copy_checkpoint(spec: TrainedSpec, directory: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Copy the checkpoint; vLLM and transformers load its bfloat16 in any dtype."""
    return Path(shutil.copytree(CHECKPOINTS / spec.folder, directory))


@cache
def tokenizer() -> Tokenizer:
    """The tokenizer of all of them."""
    return Tokenizer.from_file(str(CHECKPOINTS / "llama" / "tokenizer.json"))


@cache
def story_tokens() -> list[int]:
    """Stories that no checkpoint was trained on, one behind the other."""
    source = documents(seed=30_011, held_out=True)
    return [token for _ in range(40) for token in encode(tokenizer(), next(source))]


def story_prompt(length: int, seed: int) -> list[int]:
    """A piece of the stories; another one for every seed."""
    text = story_tokens()
    start = seed * 97 % (len(text) - length)
    return text[start : start + length]
