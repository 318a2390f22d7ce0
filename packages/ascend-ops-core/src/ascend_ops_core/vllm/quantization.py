"""vLLM's quantisation of activations by this package's operators.

``QuantFP8`` is the only one that vLLM 0.27.1 lets a platform replace; its int8 and MXFP kernels are
chosen together with the matrix product, so a linear method calls this package's operators itself.
"""

from __future__ import annotations

import torch
from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8

from ascend_ops_core.ops.quantization import block_quantize, dynamic_quantize, static_quantize

_FP8 = torch.float8_e4m3fn
_BLOCK = 128
# vLLM's smallest scale is this many times smaller than 1 / 448.
_LEAST_MAGNITUDE = 1 / 512


class AscendQuantFP8(QuantFP8):
    """float8_e4m3fn with a scale per tensor, channel, token, or 128 channels of a token.

    A token of zeros has scale 0, where vLLM has a small positive one; its values are 0 in both.
    """

    def forward_oot(
        self,
        x: torch.Tensor,
        scale: torch.Tensor | None = None,
        scale_ub: torch.Tensor | None = None,
        use_triton: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See :mod:`ascend_ops_core.ops.quantization`; other forms are vLLM's own."""
        plain = scale_ub is None and self.num_token_padding is None and x.shape[-1] > 0
        if plain and self.static and scale is not None and scale.numel() in (1, x.shape[-1]):
            values = static_quantize(x, scale.reshape(-1).float(), dtype=_FP8)
            return values, scale
        if plain and not self.static and self.use_per_token_if_dynamic:
            values, scales = dynamic_quantize(x, _FP8)
            return values, scales.unsqueeze(-1)
        if plain and not self.static and self.is_group_quant and self._in_blocks():
            values, scales = block_quantize(x, _FP8, min_magnitude=_LEAST_MAGNITUDE)
            if self.column_major_scales:
                scales = scales.transpose(-2, -1).contiguous().transpose(-1, -2)
            return values, scales
        result: tuple[torch.Tensor, torch.Tensor] = self.forward_native(
            x, scale, scale_ub, use_triton
        )
        return result

    def _in_blocks(self) -> bool:
        return (
            self.group_shape.row == 1
            and self.group_size == _BLOCK
            and not self.use_ue8m0
            and not self.tma_aligned_scales
        )
