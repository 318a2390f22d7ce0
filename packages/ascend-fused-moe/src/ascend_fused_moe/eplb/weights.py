"""Weights seen expert by expert, as moving them needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import torch
from ascend_ops_core.errors import InvalidInputError

__all__ = ["EplbExpertTensorList"]


class EplbExpertTensorList(Sequence[torch.Tensor]):
    """One kind of weight of a rank's experts: ``list[place]`` is a view of one expert's part.

    vLLM's EPLB wants what it can index by place and copy into; this holds weights that are stacked,
    and those that are a tensor for each expert, as some NPU layouts are.

    Args:
        tensors: ``[places, ...]`` stacked, or one tensor for each place, all of one form.
        name: for messages.

    Raises:
        InvalidInputError: no places, or tensors of different shapes, dtypes or devices.
    """

    def __init__(self, tensors: torch.Tensor | Sequence[torch.Tensor], name: str = "") -> None:
        self.name = name
        self._tensors = (
            list(tensors.detach().unbind(0))
            if isinstance(tensors, torch.Tensor)
            else [one.detach() for one in tensors]
        )
        forms = {(one.shape, one.dtype, one.device) for one in self._tensors}
        if len(forms) != 1:
            raise InvalidInputError(
                f"weights {name!r} of {len(forms)} different forms",
                "the experts of a rank have one shape, dtype and device",
                "Pass the weights of one layer, stacked or one by one.",
            )

    @overload
    def __getitem__(self, place: int) -> torch.Tensor: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[torch.Tensor]: ...

    def __getitem__(self, place: int | slice) -> torch.Tensor | Sequence[torch.Tensor]:
        return self._tensors[place]

    def __len__(self) -> int:
        return len(self._tensors)

    @property
    def shape(self) -> torch.Size:
        """``[places, ...]``, as if stacked."""
        return torch.Size((len(self), *self._tensors[0].shape))

    @property
    def dtype(self) -> torch.dtype:
        """Of every expert's part."""
        return self._tensors[0].dtype

    @property
    def device(self) -> torch.device:
        """Of every expert's part."""
        return self._tensors[0].device

    def store(self, place: int, value: torch.Tensor) -> None:
        """Overwrite one expert's part where it lies."""
        self._tensors[place].copy_(value)
