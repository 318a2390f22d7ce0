"""What is repaired of vLLM's processors, and that the repair is still needed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ascend_models_minimax.minimax_m3.processing import AscendMiniMaxM3VLVideoProcessor
from vllm.transformers_utils.processors.minimax_m3 import MiniMaxM3VLVideoProcessor

FRAMES = np.random.default_rng(0).integers(0, 256, (3, 28, 56, 3), dtype=np.uint8)


def test_videos_are_processed_as_by_transformers() -> None:
    from transformers.models.minimax_m3_vl import video_processing_minimax_m3_vl as theirs

    ours = AscendMiniMaxM3VLVideoProcessor()([FRAMES], return_tensors="pt", do_resize=True)
    expected = theirs.MiniMaxM3VLVideoProcessor()([FRAMES], return_tensors="pt", do_resize=True)
    assert torch.equal(ours["video_grid_thw"], expected["video_grid_thw"])
    torch.testing.assert_close(ours["pixel_values_videos"], expected["pixel_values_videos"])


def test_vllm_s_own_still_fails() -> None:
    """Once it does not, the repair goes."""
    with pytest.raises(TypeError, match="do_convert_rgb"):
        MiniMaxM3VLVideoProcessor()([FRAMES], return_tensors="pt", do_resize=True)
