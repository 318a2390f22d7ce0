"""vLLM's 3D convolution of vision encoders by this package's operator."""

from __future__ import annotations

import torch
from vllm.model_executor.layers.conv import Conv3dLayer

from ascend_ops_core.ops.conv3d import conv3d


class AscendConv3dLayer(Conv3dLayer):
    """Arguments as vLLM's."""

    def forward_oot(self, x: torch.Tensor) -> torch.Tensor:
        """``[B, C, T, H, W]`` to ``[B, O, T', H', W']``."""
        return conv3d(
            x,
            self.weight,
            self.bias,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
        )
