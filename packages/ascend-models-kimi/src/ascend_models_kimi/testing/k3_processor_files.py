"""Tokenizer and image settings beside a tiny Kimi-K3, so that requests with images can be made.

Text is tokenized byte by byte.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PAD, BEGIN, CONTENT, END, PLACEHOLDER = 500, 501, 502, 503, 504
"""Ids of the tokens in the order of :data:`MARKERS`."""

MARKERS = (
    "<|media_pad|>",
    "<|media_begin|>",
    "<|media_content|>",
    "<|media_end|>",
    "<|kimi_image_placeholder|>",
)

MEDIA_SETTINGS: dict[str, Any] = {
    "patch_size": 4,
    "merge_kernel_size": [2, 2],
    "in_patch_limit": 60,
    "patch_limit_on_one_side": 12,
    "fixed_output_tokens": None,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
"""``media_proc_cfg``; its patches are those of the tiny tower."""

_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)


def write_k3_processor_files(directory: str | Path) -> Path:
    """Write tokenizer, chat template, and the settings of the image processor.

    Args:
        directory: of a tiny checkpoint with a vocabulary of 512.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    path = Path(directory)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: 4 + i for i, letter in enumerate(letters)}
    for i in set(range(PAD)) - set(vocab.values()):
        vocab[f"<unused {i}>"] = i
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(one, special=True) for one in MARKERS])
    fast: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<unused 1>")
    fast.chat_template = _TEMPLATE
    fast.save_pretrained(path)
    settings = {"image_processor_type": "KimiK3VisionProcessor", "media_proc_cfg": MEDIA_SETTINGS}
    (path / "preprocessor_config.json").write_text(json.dumps(settings, indent=1) + "\n")
    return path
