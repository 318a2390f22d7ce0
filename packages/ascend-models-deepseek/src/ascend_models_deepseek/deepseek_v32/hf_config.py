"""The config class that vLLM loads ``model_type: deepseek_v32`` with.

vLLM 0.27.1 takes transformers' class of DeepSeek-V3 and renames its ``model_type`` for the whole
process, after which a checkpoint of DeepSeek-V3 is taken for one of V3.2.
"""

from __future__ import annotations

from transformers import DeepseekV3Config


class AscendDeepseekV32Config(DeepseekV3Config):
    """DeepSeek-V3's keys, and those of the indexer."""

    model_type = "deepseek_v32"
