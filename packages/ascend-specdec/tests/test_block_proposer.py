"""Which group of caches each layer of a block draft reads (bug case 18)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_ops_core.errors import InvalidInputError

pytestmark = pytest.mark.engine

BLOCKS = {0: 16, 2: 128}
"""Tokens of a block of the groups that hold layers of the draft."""


class Group:
    """Stands for vLLM's group of layers with one backend."""

    def __init__(self, backend: Any, names: list[str], spec: Any, gid: int) -> None:
        self.layer_names, self.kv_cache_spec, self.gid = names, spec, gid

    def create_metadata_builders(self, *given: Any, kernel_block_size: int) -> None:
        self.kernel_block_size = kernel_block_size


def proposer_of(monkeypatch: pytest.MonkeyPatch, *, sees_behind: bool = True) -> Any:
    """A proposer whose draft has three layers; one of them is causal."""
    from ascend_specdec.vllm import block_proposer

    backend = SimpleNamespace(
        supports_non_causal=lambda: sees_behind,
        get_name=lambda: "SOME",
        full_cls_name=lambda: "some.Backend",
    )
    names = ["draft.0", "draft.1", "draft.2"]
    layers = {name: SimpleNamespace(get_attn_backend=lambda: backend) for name in names}
    monkeypatch.setattr(block_proposer, "get_layers_from_vllm_config", lambda *given: layers)
    monkeypatch.setattr(block_proposer, "AttentionGroup", Group)
    made: Any = object.__new__(block_proposer.BlockDraftProposer)
    made._draft_attn_layer_names = set(names)
    causal = dict.fromkeys(names, False) | {"draft.2": True}
    made.model = SimpleNamespace(causal_layers=lambda: causal)
    made.vllm_config, made.device = None, torch.device("cpu")
    tables = [SimpleNamespace(get_device_tensor=lambda n, gid=gid: gid) for gid in range(3)]
    made.runner = SimpleNamespace(input_batch=SimpleNamespace(block_table=tables))
    return made


def caches_of(*groups: list[str]) -> Any:
    sizes = [SimpleNamespace(block_size=BLOCKS.get(gid, 64)) for gid in range(len(groups))]
    return SimpleNamespace(
        kv_cache_groups=[
            SimpleNamespace(layer_names=names, kv_cache_spec=spec)
            for names, spec in zip(groups, sizes, strict=True)
        ]
    )


def test_every_layer_reads_the_table_of_its_own_group(monkeypatch: pytest.MonkeyPatch) -> None:
    proposer = proposer_of(monkeypatch)
    caches = caches_of(["target.0", "draft.1"], ["target.1"], ["draft.0", "draft.2"])
    proposer.initialize_attn_backend(caches, [16, 64, 32])
    found = {name: group.gid for _, group in proposer.groups for name in group.layer_names}
    assert found == {"draft.1": 0, "draft.0": 2, "draft.2": 2}
    # Kernels of the third group read smaller blocks than it is managed by.
    assert proposer.block_sizes == {0: 16, 2: 32}
    assert {group.kernel_block_size for _, group in proposer.groups} == {16, 32}
    common = SimpleNamespace(block_table_tensor=torch.arange(5))
    assert proposer._block_table(common, 0, 2).tolist() == [0, 1]
    assert proposer._block_table(common, 2, 2) == 2


def test_a_layer_in_no_group_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    caches = caches_of(["target.0", "draft.1"], ["draft.0"])
    with pytest.raises(InvalidInputError, match=r"in no group of caches: draft\.2"):
        proposer_of(monkeypatch).initialize_attn_backend(caches)


def test_a_backend_that_hides_what_is_behind_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    proposer = proposer_of(monkeypatch, sees_behind=False)
    with pytest.raises(InvalidInputError, match="backend SOME"):
        proposer.initialize_attn_backend(caches_of(["draft.0", "draft.1", "draft.2"]))
