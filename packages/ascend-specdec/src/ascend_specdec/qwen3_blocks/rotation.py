"""The rotation of a QuaRot target's residual stream, and a draft that takes it out."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from ascend_ops_core.errors import InvalidInputError
from safetensors import safe_open

__all__ = ["merge_rotation", "target_rotation"]

_DESCRIPTION = "quant_model_description.json"
_TENSOR = "global_rotation"


def target_rotation(folder: str) -> torch.Tensor | None:
    """The rotation ``Q [H, H]`` of a target, whose hidden states are ``h Q``; None for none.

    Its description of quantisation names the file under ``optional.quarot.rotation_map``; only that
    one tensor is read.

    Raises:
        InvalidInputError: the description names a file that is not there or has no such tensor.
    """
    description = Path(folder) / _DESCRIPTION
    if not description.is_file():
        return None
    optional = json.loads(description.read_text()).get("optional") or {}
    named = ((optional.get("quarot") or {}).get("rotation_map") or {}).get(_TENSOR)
    if named is None:
        return None
    path = Path(folder) / named
    if path.is_file():
        with safe_open(path, framework="pt") as tensors:
            if _TENSOR in tensors.keys():  # noqa: SIM118 (the file is no mapping)
                rotation: torch.Tensor = tensors.get_tensor(_TENSOR)
                return rotation
    raise InvalidInputError(
        f"{_DESCRIPTION} with the rotation {named!r}",
        f"that file holds {_TENSOR}, and it is not there",
        "Copy the whole checkpoint.",
    )


def merge_rotation(weight: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """A weight that does to rotated hidden states what ``weight`` does to plain ones.

    ``W blockdiag(Q, ..., Q)``, one block for each of the target's layers that it reads, multiplied
    in float32.

    Args:
        weight: ``[H, m * H]``.
        rotation: ``[H, H]``, orthogonal.

    Returns:
        ``[H, m * H]`` in ``weight``'s dtype.

    Raises:
        InvalidInputError: shapes that do not fit each other.
    """
    width = rotation.shape[0]
    if rotation.shape != (width, width) or weight.shape[1] % width:
        raise InvalidInputError(
            f"fc.weight of shape {list(weight.shape)} with a rotation {list(rotation.shape)}",
            "it reads whole hidden states of the target",
            "Take a draft that was trained for this target.",
        )
    blocks = weight.float().unflatten(1, (-1, width)) @ rotation.float()
    return blocks.flatten(1).to(weight.dtype)
