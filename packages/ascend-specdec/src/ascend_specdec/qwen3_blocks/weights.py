"""A Qwen3 block draft's checkpoint: which tensors it has, and where each goes."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.layers.draft_heads import DSparkConfidenceHead
from torch import nn
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.transformers_utils.repo_utils import get_hf_file_bytes

from ascend_specdec.quarot import rotate_inputs, rotation_of

__all__ = ["load_draft"]

_STACKED: dict[str, tuple[str, Any]] = {
    ".k_proj.": (".kv_proj.", "k"),
    ".v_proj.": (".kv_proj.", "v"),
    ".gate_proj.": (".gate_up_proj.", 0),
    ".up_proj.": (".gate_up_proj.", 1),
}
_HEADS = ("lm_head.", "candidate_selector.", "markov_head.")
_CONFIDENCE = "confidence_head.proj."
_MASK_FILE = "mask_embedding.pt"


def load_draft(draft: Any, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
    """Fill a draft from its checkpoint.

    Embedding and head may be missing, and then are the target's. For a target whose residual
    stream is rotated (QuaRot) the rotation is taken out of what reads its hidden states; such a
    draft brings an embedding and a head of its own.

    Args:
        draft: the model; gets its confidence head and its map of tokens where there are any.
        weights: names and tensors of the checkpoint.

    Returns:
        Names of the parameters that were filled.

    Raises:
        InvalidInputError: tensors that the model has no place for, that are missing, or that have
            another shape; or a target of which cannot be found out whether it is rotated.
    """
    parameters = dict(draft.named_parameters())
    rotation = rotation_of(draft.target_files, draft.spec.hidden_size)
    filled: set[str] = set()
    given: dict[str, set[Any]] = {}
    confidence: dict[str, torch.Tensor] = {}
    unknown = []
    for name, tensor in weights:
        if name == "t2d":
            continue  # for training
        if name == "d2t":
            draft.draft_to_target = _map_of_tokens(draft, tensor)
            continue
        if name.startswith(_CONFIDENCE) and hasattr(draft, "confidence_head"):
            confidence[name.removeprefix(_CONFIDENCE)] = tensor
            continue
        if name == "fc.weight" and rotation is not None:
            tensor = rotate_inputs(tensor, rotation)
        target, shard = _place(name)
        parameter = parameters.get(target)
        if parameter is None:
            unknown.append(name)
            continue
        _fill(name, parameter, tensor, shard)
        filled.add(target)
        given.setdefault(target, set()).add(shard)
    draft.has_own_embed_tokens = "model.embed_tokens.weight" in filled
    draft.has_own_lm_head = "lm_head.weight" in filled
    optional = {"model.embed_tokens.weight", "lm_head.weight"}
    parts: dict[str, set[Any]] = {"kv_proj": {"k", "v"}, "gate_up_proj": {0, 1}}
    missing = [one for one in parameters if one not in filled and one not in optional]
    for target, shards in given.items():
        missing += [
            f"{target}[{shard}]" for shard in parts.get(target.split(".")[-2], shards) - shards
        ]
    _refuse(draft, unknown, missing, rotation is not None)
    if confidence:
        draft.confidence_head = _confidence_head(draft, confidence)
    _read_mask_embedding(draft)
    # Whoever loads a model asks for every parameter that it has in the end.
    late = {"confidence_head.weight", "confidence_head.bias", "model.mask_embedding"}
    return filled | (late & dict(draft.named_parameters()).keys())


def _place(name: str) -> tuple[str, Any]:
    """Parameter of a tensor, and which part of it."""
    if name.startswith(("markov_head.", "candidate_selector.")):
        # Matrices of their own, without a layer around them.
        return name.removesuffix(".weight"), None
    target = name if name.startswith(_HEADS) else f"model.{name}"
    if "_conv." in target:
        return target.removesuffix(".weight"), None
    for original, (stacked, shard) in _STACKED.items():
        if original in target:
            return target.replace(original, stacked), shard
    return target, None


def _fill(name: str, parameter: nn.Parameter, tensor: torch.Tensor, shard: Any) -> None:
    loader = getattr(parameter, "weight_loader", default_weight_loader)
    try:
        if shard is None:
            loader(parameter, tensor)
        else:
            loader(parameter, tensor, shard)
    except (AssertionError, RuntimeError) as error:
        raise InvalidInputError(
            f"{name} of shape {list(tensor.shape)}",
            f"it does not fill a parameter of shape {list(parameter.shape)} ({error})",
            "Take a checkpoint that belongs to its config.json.",
        ) from error


def _refuse(draft: Any, unknown: list[str], missing: list[str], rotated: bool) -> None:
    if unknown or missing:
        raise InvalidInputError(
            f"a draft with {len(unknown)} unknown and {len(missing)} missing tensors",
            f"unknown: {', '.join(unknown[:5]) or 'none'}; "
            f"missing: {', '.join(missing[:5]) or 'none'}",
            "Take a checkpoint that belongs to its config.json.",
        )
    own = draft.has_own_embed_tokens and draft.has_own_lm_head
    if rotated and not own:
        raise InvalidInputError(
            "a draft that takes its embedding or head from the target",
            "those of a rotated target (QuaRot) are rotated, and the draft's layers are not",
            "Take a draft with embed_tokens.weight and lm_head.weight.",
        )
    spec = draft.spec
    smaller = spec.draft_vocab_size != spec.vocab_size
    if smaller and not (draft.has_own_lm_head and draft.draft_to_target is not None):
        raise InvalidInputError(
            f"a draft with draft_vocab_size={spec.draft_vocab_size} of {spec.vocab_size} tokens",
            "a smaller head needs lm_head.weight and d2t of its own",
            "Take a checkpoint with both.",
        )


def _map_of_tokens(draft: Any, offsets: torch.Tensor) -> torch.Tensor:
    """The target's token of each of the draft's, of offsets ``[D]``."""
    spec = draft.spec
    count = spec.draft_vocab_size
    found = offsets.long() + torch.arange(count) if offsets.shape == (count,) else None
    if found is None or not bool(((found >= 0) & (found < spec.vocab_size)).all()):
        raise InvalidInputError(
            f"d2t of shape {list(offsets.shape)}",
            f"it maps {count} tokens to the target's {spec.vocab_size}",
            "Take a checkpoint that belongs to its config.json.",
        )
    return found.to(draft.model.norm.weight.device)


def _confidence_head(draft: Any, tensors: dict[str, torch.Tensor]) -> DSparkConfidenceHead:
    if "weight" not in tensors:
        raise InvalidInputError(
            f"a confidence head with {', '.join(tensors)} alone",
            "it has a weight",
            "Take a whole checkpoint.",
        )
    head = DSparkConfidenceHead(
        tensors["weight"],
        tensors.get("bias"),
        draft.spec.hidden_size,
        draft.spec.markov_rank,
    )
    return head.to(draft.model.norm.weight.device)


def _read_mask_embedding(draft: Any) -> None:
    """Take the mask token's row from a file of its own, where the checkpoint has one."""
    config = draft.draft_model_config
    data = get_hf_file_bytes(_MASK_FILE, config.model, config.revision)
    if data is None:
        return
    stored = torch.load(io.BytesIO(data), weights_only=True)
    row = stored["embedding"] if isinstance(stored, dict) else stored
    like = draft.model.norm.weight
    if row.numel() != like.numel():
        raise InvalidInputError(
            f"{_MASK_FILE} with {row.numel()} numbers",
            f"a row of the embedding has {like.numel()}",
            "Remove the file, or take one that belongs to the draft.",
        )
    row = row.flatten().to(like.device, like.dtype)
    draft.model.mask_embedding = nn.Parameter(row, requires_grad=False)
