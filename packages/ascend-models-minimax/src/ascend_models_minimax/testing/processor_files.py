"""Tokenizer and processor files beside a tiny checkpoint, so that requests with images can be made.

Text is tokenized byte by byte.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

IMAGE, VIDEO, START, END = 500, 501, 502, 503
"""Ids of a placeholder of an image, one of a video, and what stands around both."""

MARKERS = ("]<]image[>[", "]<]video[>[", "]<]start of image[>[", "]<]end of image[>[")
"""The tokens with these ids, in their order."""

MOST_PIXELS = 16 * 28 * 28
"""Pixels of the largest image; what is larger is shrunk."""

_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)


def write_processor_files(directory: str | Path) -> Path:
    """Write tokenizer, chat template, and the settings of the image and video processors.

    Args:
        directory: of a tiny checkpoint with a vocabulary of 512.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    path = Path(directory)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: 4 + i for i, letter in enumerate(letters)}
    for i in set(range(IMAGE)) - set(vocab.values()):
        vocab[f"<unused {i}>"] = i
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(one, special=True) for one in MARKERS])
    fast: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<unused 1>")
    fast.chat_template = _TEMPLATE
    fast.save_pretrained(path)
    sizes = {
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "max_pixels": MOST_PIXELS,
    }
    for file, kind in (
        ("preprocessor_config.json", {"image_processor_type": "MiniMaxM3VLImageProcessor"}),
        ("video_preprocessor_config.json", {"video_processor_type": "MiniMaxM3VLVideoProcessor"}),
    ):
        (path / file).write_text(json.dumps(kind | sizes, indent=1) + "\n")
    return path
