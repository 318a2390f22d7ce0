"""Lets a draft follow a target whose residual stream was rotated before it was quantised.

QuaRot (Ashkboos et al., 2024) turns every row h of the stream into ``h Q`` with an orthogonal Q, so
that no channel stands out. The draft was trained on h. Its matrix ``W`` over m streams side by side
must see ``h`` again: ``W blockdiag(Q, ..., Q)`` does, since ``(W B)(h Q)^T = W h^T`` for every
block. A token embedding that the draft takes from the target is rotated back row by row:
``E = E_r Q^T``. ModelSlim keeps Q beside the target's weights. Files are taken from whatever finds
them by name (:class:`ascend_specdec.vllm.target_files.TargetFiles`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import torch
from ascend_ops_core.errors import InvalidInputError
from safetensors import safe_open

__all__ = [
    "EMBEDDINGS",
    "compute_rotation_matrix3",
    "load_quarot_target_layer",
    "rotate_inputs",
    "rotation_file",
    "rotation_of",
]

DESCRIPTION = "quant_model_description.json"
ROTATION = "global_rotation"
_KEYS = ("optional", "quarot", "rotation_map", ROTATION)

EMBEDDINGS = (
    "model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
    "embed_tokens.weight",
    "embed.weight",
)
"""Names of a target's token embedding, in the order in which they are looked for."""

_ORTHOGONAL = 1e-3


class Files(Protocol):
    """Finds the files of a target's checkpoint."""

    @property
    def model(self) -> str:
        """What the target is called in errors."""

    @property
    def folder(self) -> Path | None:
        """The checkpoint's folder; None if it is no folder of this machine."""

    def find(self, name: str) -> Path | None:
        """Where a file lies; None if the checkpoint has no such file."""


def rotation_file(files: Files) -> Path | None:
    """The file with a checkpoint's rotation; None if its description names none.

    Args:
        files: the target's.

    Raises:
        InvalidInputError: the file that the description names is not there, or it cannot be found
            out whether there is a description.
    """
    description = files.find(DESCRIPTION)
    if description is None:
        return None
    entry: Any = json.loads(description.read_text())
    for key in _KEYS:
        if not isinstance(entry, dict) or key not in entry:
            return None
        entry = entry[key]
    path = files.find(str(entry))
    if path is None:
        raise InvalidInputError(
            f"{'.'.join(_KEYS)}={entry!r} of {DESCRIPTION} in {files.model}",
            "it names a file beside it",
            "Copy the file from where the checkpoint was quantised.",
        )
    return path


def rotation_of(files: Files, width: int) -> torch.Tensor | None:
    """The rotation ``Q [width, width]`` float32 of a target; None if it is not rotated.

    Only that one tensor is read.

    Args:
        files: the target's.
        width: its hidden size.

    Raises:
        InvalidInputError: the file is not there, or holds no orthogonal matrix of that size.
    """
    path = rotation_file(files)
    if path is None:
        return None
    with safe_open(path, framework="pt") as file:
        if ROTATION not in file.keys():  # noqa: SIM118, it is no dict
            raise InvalidInputError(
                f"{path} with {sorted(file.keys())[:5]}",
                f"it holds a tensor {ROTATION!r}",
                "Quantise the target anew.",
            )
        rotation = file.get_tensor(ROTATION).float()
    if rotation.shape != (width, width):
        raise InvalidInputError(
            f"{ROTATION} {list(rotation.shape)} in {path}",
            f"the target's stream has {width} channels",
            "Use the rotation of this target.",
        )
    error = float((rotation @ rotation.T - torch.eye(width)).abs().max())
    if not error < _ORTHOGONAL:
        raise InvalidInputError(
            f"{ROTATION} in {path}, off an orthogonal matrix by {error:.3g}",
            f"at most {_ORTHOGONAL:g}",
            "Use the rotation of this target.",
        )
    return rotation


def compute_rotation_matrix3(rotation: torch.Tensor) -> torch.Tensor:
    """The rotation of three streams side by side.

    :func:`rotate_inputs` does the same without a matrix of ``9 H^2`` entries.

    Args:
        rotation: ``[H, H]``.

    Returns:
        ``[3 H, 3 H]`` float32.
    """
    return torch.block_diag(*[rotation.float()] * 3)


def rotate_inputs(weight: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """``weight`` as it must be for rotated inputs, ``W blockdiag(Q, ..., Q)``.

    Args:
        weight: ``[O, m H]``.
        rotation: ``[H, H]`` float32.

    Returns:
        ``[O, m H]`` in the weight's dtype, computed in float32.

    Raises:
        InvalidInputError: the weight is not made for whole streams.
    """
    width = rotation.shape[0]
    if weight.dim() != 2 or weight.shape[1] % width:
        raise InvalidInputError(
            f"a weight {list(weight.shape)}",
            f"its inputs are whole streams of {width} channels",
            "Use a draft that was trained for this target.",
        )
    blocks = weight.float().unflatten(1, (-1, width)) @ rotation
    return blocks.flatten(1).to(weight.dtype)


def _find_safetensors_weight(files: Files, names: tuple[str, ...]) -> tuple[Path, str]:
    """The file that holds the first of some tensors, and its name; reads no tensor.

    Raises:
        InvalidInputError: none of them is there.
    """
    index = files.find("model.safetensors.index.json")
    held: dict[str, Path | str] = {}
    if index is not None:
        held |= json.loads(index.read_text())["weight_map"]
    else:
        # A folder may hold its files under any names; on the hub one without an index has one.
        whole = files.find("model.safetensors") if files.folder is None else None
        paths = sorted(files.folder.glob("*.safetensors")) if files.folder else [whole]
        for path in paths:
            if path is not None:
                with safe_open(path, framework="pt") as file:
                    held |= dict.fromkeys(file.keys(), path)
    for name in names:
        place = held.get(name)
        found = files.find(place) if isinstance(place, str) else place
        if found is not None:
            return found, name
    raise InvalidInputError(
        f"{files.model} with {len(held)} tensors",
        f"it holds one of {', '.join(names)}",
        "Use a draft that has an embedding of its own.",
    )


def load_quarot_target_layer(
    files: Files, names: tuple[str, ...], rotation: torch.Tensor
) -> torch.Tensor:
    """A target's matrix over tokens, rotated back; the one tensor is read and no other.

    Args:
        files: the target's.
        names: of the tensor ``[V, H]``; the first that is there counts.
        rotation: ``[H, H]`` float32.

    Returns:
        ``[V, H]`` in the tensor's dtype, computed in float32.

    Raises:
        InvalidInputError: none of the tensors is there, or not in this width.
    """
    path, name = _find_safetensors_weight(files, names)
    with safe_open(path, framework="pt") as file:
        rotated = file.get_tensor(name)
    if rotated.shape[-1] != rotation.shape[0]:
        raise InvalidInputError(
            f"{name} {list(rotated.shape)} in {path}",
            f"its rows have {rotation.shape[0]} channels",
            "Use the rotation of this target.",
        )
    return (rotated.float() @ rotation.T).to(rotated.dtype)
