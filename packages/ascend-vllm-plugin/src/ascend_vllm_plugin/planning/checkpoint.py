"""Whether a checkpoint fits its config: every problem at once, from headers alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from ascend_fused_moe.quantized_rules import WeightForms
from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_ops_core.checkpoint.headers import known_dtypes, read_file
from ascend_ops_core.checkpoint.table import CheckpointError, WeightTable
from ascend_ops_core.devices import facts_of
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.quantized_weights.descriptions import CacheDescription
from ascend_ops_core.quantized_weights.weight import check_family

from ascend_vllm_plugin.planning.drafts import DraftTarget, Speculation, draft_problem
from ascend_vllm_plugin.planning.kimi import PlannedKimi
from ascend_vllm_plugin.planning.kimi_draft import k3_draft_problems
from ascend_vllm_plugin.planning.models import (
    ModelSpec,
    as_described,
    draft_key,
    draft_prefixes,
    has_int8_latents,
    main_table,
    mtp_table,
    read_spec,
    resolver_of,
    shard_of,
)
from ascend_vllm_plugin.planning.source import ModelSource, read_config
from ascend_vllm_plugin.planning.v4_draft import v4_draft_problems

INDEX_FILE = "model.safetensors.index.json"
FAMILIES = ("A2", "A3", "A5")
Headers = dict[str, tuple[tuple[int, ...], torch.dtype]]


@dataclass
class CheckpointReport:
    """What is in a checkpoint, and what is wrong with it.

    Attributes:
        directory: where it lies.
        tensors: how many tensors its files hold.
        bytes: their size.
        quantization: the schemes in which matrices are stored, ``model`` for none, or None if it
            cannot be told.
        problems: why it cannot be served, a line each.
        notes: what is worth knowing and needs no action.
    """

    directory: Path
    tensors: int = 0
    bytes: int = 0
    quantization: str | None = None
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_checkpoint(directory: Path, speculation: Speculation | None = None) -> CheckpointReport:
    """Compare config, headers and quantization description. Reads no tensor.

    Args:
        directory: of the checkpoint.
        speculation: also check the draft that it names.

    Raises:
        InvalidInputError: no directory, or nothing in it that describes a model.
    """
    if not directory.is_dir():
        raise InvalidInputError(
            f"model {directory}", "there is no such directory", "Give a checkpoint's directory."
        )
    config = read_config(directory)
    report = CheckpointReport(directory)
    stored = _read_files(report)
    report.tensors = len(stored)
    report.bytes = sum(torch.Size(shape).numel() * d.itemsize for shape, d in stored.values())
    try:
        spec = read_spec(config)
    except InvalidInputError as error:
        report.problems.append(f"config.json: {error}")
        return report
    if stored:
        _compare(report, spec, config, stored)
    if speculation is not None:
        source = ModelSource(directory, config, spec, stored)
        report.problems += _draft_problems(source, speculation)
    return report


def _draft_problems(source: ModelSource, speculation: Speculation) -> list[str]:
    spec = source.spec
    if isinstance(spec, DeepseekV4Spec) and speculation.method == "dspark":
        return v4_draft_problems(source, speculation)
    if isinstance(spec, PlannedKimi) and speculation.model is not None:
        return k3_draft_problems(speculation.model, spec)
    target = DraftTarget(
        spec.hidden_size, spec.vocab_size, spec.max_position_embeddings, torch.bfloat16
    )
    problem = draft_problem(speculation, target)
    return [] if problem is None else [problem]


def _read_files(report: CheckpointReport) -> Headers:
    files = sorted(report.directory.glob("*.safetensors"))
    if not files:
        report.problems.append("there is no *.safetensors file here: download the weights")
    stored: Headers = {}
    owner: dict[str, str] = {}
    for file in files:
        try:
            found, unknown = known_dtypes(read_file(file))
        except CheckpointError as error:
            report.problems.append(str(error))
            continue
        report.problems += unknown
        for name in sorted(set(found) & set(owner)):
            report.problems.append(f"{name} is in {owner[name]} and in {file.name}")
        owner |= dict.fromkeys(found, file.name)
        stored |= found
    _check_index(report, owner, {file.name for file in files})
    return stored


def _check_index(report: CheckpointReport, owner: Mapping[str, str], files: set[str]) -> None:
    index = report.directory / INDEX_FILE
    if not index.is_file():
        return
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        listed = {str(name): str(file) for name, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        report.problems.append(f"{INDEX_FILE} cannot be read ({error!r}): download it again")
        return
    for file in sorted(set(listed.values()) - files):
        count = sum(where == file for where in listed.values())
        report.problems.append(f"{file} is missing; {INDEX_FILE} lists {count} tensors in it")
    for name, file in sorted(listed.items()):
        if file in files and owner.get(name) != file:
            where = owner.get(name, "no readable file")
            report.problems.append(f"{INDEX_FILE} lists {name} in {file}, it is in {where}")
    unlisted = len(set(owner) - set(listed))
    if unlisted:
        report.notes.append(f"{unlisted} tensors are not listed in {INDEX_FILE}")


def _compare(
    report: CheckpointReport, spec: ModelSpec, config: Mapping[str, Any], stored: Headers
) -> None:
    try:
        resolver = resolver_of(config, report.directory)
    except InvalidInputError as error:
        report.problems.append(str(error))
        return
    spec = as_described(spec, resolver)
    shard = shard_of(spec, 1, (0, spec.vocab_size))
    rules = dict(main_table(spec, shard).rules)
    unused = draft_prefixes(spec)
    drafts = sum(name.startswith(unused) for name in stored)
    if spec.num_mtp_layers and drafts:
        table = mtp_table(spec, shard)
        rules |= table.rules
        # Copies of what the main model has.
        unused = tuple(one for one in table.ignored_prefixes if one.startswith(unused))
    elif spec.num_mtp_layers:
        report.notes.append("no MTP tensors: it can be served, but not with MTP speculation")
    elif drafts:
        report.notes.append(f"{drafts} MTP tensors, but {draft_key(spec)}=0: not used")
    try:
        forms = WeightForms(WeightTable(rules, unused), resolver)
    except InvalidInputError as error:
        report.problems.append(str(error))
        return
    report.quantization = ", ".join(sorted(one.name for one in forms.schemes)) or "model"
    report.problems += forms.problems + forms.table.problems(stored)
    report.notes += _device_notes(forms)
    if resolver.cache != CacheDescription():
        report.notes.append(
            f"{resolver.source} wants key-value rows in {resolver.cache.kv or 'their dtype'}, "
            f"indexer keys in {resolver.cache.index or 'theirs'}: {_caches(spec, resolver.cache)}"
        )


def _caches(spec: ModelSpec, described: CacheDescription) -> str:
    """How they are stored."""
    if any(has_int8_latents(spec, described, family, "family") for family in FAMILIES):
        return "on an NPU latents are, with scales of their own, and keys as the family has them"
    return "caches are stored as the device family has them"


def _device_notes(forms: WeightForms) -> Iterator[str]:
    """Device families that cannot hold what is stored."""
    for scheme in sorted(forms.schemes, key=lambda one: one.name):
        for family in FAMILIES:
            try:
                check_family(scheme, facts_of(family))
            except InvalidInputError as error:
                yield f"not on {family}: {error}"
