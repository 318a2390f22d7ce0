"""DeepSeek-V4's compressor: projections to state rows, and finishing of closed entries."""

from __future__ import annotations

import torch
from ascend_ops_core.layers.rotary import ComplexExpRotaryEmbedding
from ascend_ops_core.ops.rotary import rms_norm_rotary
from torch import nn

from ascend_attention.caches import overlap_of
from ascend_attention.ops.compressor import (
    compress_paged_windows,
    compress_windows,
    project_states,
)
from ascend_attention.ops.paged_rows import RowIndex


class Compressor(nn.Module):
    """Turns every ``ratio`` tokens into one key-value entry of width ``D``.

    Args:
        hidden_size: ``H``.
        head_dim: ``D``.
        ratio: tokens per entry.
        norm_eps: epsilon of the entry's RMS norm.
        rotary: table of the compressed branch; an entry is rotated by its first token's position.
        dtype: dtype of the projections.

    Attributes:
        wkv_wgate: ``[2 * overlap * D, H]``, key-value series and then gate series.
        ape: ``[ratio, overlap * D]`` float32, bias of the gate by position within the window.
        norm: ``[D]`` float32.
    """

    def __init__(
        self,
        hidden_size: int,
        head_dim: int,
        ratio: int,
        norm_eps: float,
        rotary: ComplexExpRotaryEmbedding,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.ratio = ratio
        self.overlap = overlap_of(ratio)
        self.norm_eps = norm_eps
        # The table is shared by all layers and is no part of this module's state.
        self._rotary = [rotary]
        series = self.overlap * head_dim
        self.wkv_wgate = nn.Parameter(
            torch.empty(2 * series, hidden_size, dtype=dtype), requires_grad=False
        )
        self.ape = nn.Parameter(
            torch.empty(ratio, series, dtype=torch.float32), requires_grad=False
        )
        self.norm = nn.Parameter(torch.empty(head_dim, dtype=torch.float32), requires_grad=False)

    @property
    def rotary(self) -> ComplexExpRotaryEmbedding:
        """The table of the compressed branch."""
        return self._rotary[0]

    def project(self, hidden: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """State rows of some tokens.

        Args:
            hidden: ``[T, H]``.
            position: ``[T]`` integer position of every token within its request.

        Returns:
            ``[T, 2 * overlap * D]`` float32.
        """
        return project_states(hidden, self.wkv_wgate, self.ape, position)

    def finish(
        self, state_rows: torch.Tensor, entry: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        """Entries from the state rows of their windows.

        Args:
            state_rows: ``[N, overlap * ratio, 2 * overlap * D]`` float32.
            entry: ``[N]`` int64, index of every entry within its request.
            dtype: dtype of the result, the model's.

        Returns:
            ``[N, D]``, normed and rotated.
        """
        return self._normed(compress_windows(state_rows, entry == 0, self.overlap), entry, dtype)

    def finish_paged(
        self,
        state_cache: torch.Tensor,
        rows: RowIndex,
        entry: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """:meth:`finish` of windows that are read where they lie.

        Args:
            state_cache: ``[B, P, 2 * overlap * D]`` float32.
            rows: ``[N, overlap * ratio]``, the rows of every window in order; a negative block
                marks rows that do not exist, and an entry of nothing else becomes zeros.
            entry: ``[N]`` int64, index of every entry within its request.
            dtype: dtype of the result, the model's.

        Returns:
            ``[N, D]``, normed and rotated.
        """
        pooled = compress_paged_windows(
            state_cache, rows.block, rows.offset, entry == 0, self.overlap
        )
        return self._normed(pooled, entry, dtype)

    def _normed(
        self, pooled: torch.Tensor, entry: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        cos, sin = self.rotary.gather(entry * self.ratio)
        rows = pooled.to(dtype).unsqueeze(1)
        return rms_norm_rotary(rows, self.norm, self.norm_eps, cos, sin).squeeze(1)
