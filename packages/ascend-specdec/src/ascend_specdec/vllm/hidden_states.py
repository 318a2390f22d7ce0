"""Writes the target's hidden states of every request to a file, on any device.

For vLLM's method ``extract_hidden_states`` (0.27.1), which keeps hidden states of chosen layers in
a group of caches of their own, so that chunks, prefix hits and preempted requests need nothing
else. vLLM's ``ExampleHiddenStatesConnector`` copies them through streams and pinned memory of CUDA;
this one copies when a request has finished, and has the same settings and contents of files.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import torch
from ascend_ops_core.errors import InvalidInputError
from safetensors.torch import load_file, save_file
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank
from vllm.v1.kv_cache_interface import KVCacheConfig

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

__all__ = ["CONNECTOR", "AscendHiddenStatesConnector", "read_hidden_states", "register_connector"]

CONNECTOR = "AscendHiddenStatesConnector"
FOLDER_KEY = "shared_storage_path"
_LAYER = "cache_only_layers."
"""In the name of the layer that vLLM keeps the states with."""


@dataclass(frozen=True)
class _Finished:
    """A request whose states are to be written.

    Attributes:
        request: its id.
        tokens: those whose states are wanted, from the first.
        blocks: of its states, in order.
    """

    request: str
    tokens: list[int]
    blocks: list[int]


@dataclass
class _Step(KVConnectorMetadata):
    """What the scheduler tells the workers with a step."""

    finished: list[_Finished] = field(default_factory=list)


class AscendHiddenStatesConnector(KVConnectorBase_V1, SupportsHMA):
    """Writes ``hidden_states [T, m, H]`` of ``m`` layers, and ``token_ids [T]``, when requests end.

    ``kv_connector_extra_config`` names the folder as ``shared_storage_path``. A request's output
    names its file, ``kv_transfer_params["hidden_states_path"]``; the file appears whole, with the
    engine's next step. ``T`` are the tokens of the prompt; a request with ``kv_transfer_params``
    ``{"include_output_tokens": True}`` gets those of the answer as well, except for the last, which
    the model never read. Of an aborted request the tokens that were computed are written, or no
    file if there are none.

    Args:
        vllm_config: the engine's config.
        role: the scheduler's, or a worker's.
        kv_cache_config: of all groups of caches.

    Raises:
        InvalidInputError: no folder, another speculative method, or no group of hidden states.
    """

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.folder = folder_of(vllm_config)
        self.group, self.block_size = _group_of(vllm_config, kv_cache_config)
        self._ended: list[_Finished] = []
        self._cache: torch.Tensor | None = None
        self._writes = False

    @property
    def prefer_cross_layer_blocks(self) -> bool:
        """Never: the states lie apart from the target's caches."""
        return False

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Find the cache of states on this worker; the first rank writes."""
        from vllm.model_executor.models.extract_hidden_states import CacheOnlyAttentionLayer

        self._writes = get_tensor_model_parallel_rank() == 0
        names = list(kv_caches)
        (name,) = get_layers_from_vllm_config(self._vllm_config, CacheOnlyAttentionLayer, names)
        self._cache = kv_caches[name]
        assert self._cache.shape[1] == self.block_size, (self._cache.shape, self.block_size)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Write what the scheduler asked for; the requests' blocks are free from then on."""
        if not self.has_connector_metadata():
            return None, None
        step = self._get_connector_metadata()
        assert isinstance(step, _Step)
        for one in step.finished:
            if self._writes:
                self._write(one)
        return {one.request for one in step.finished} or None, None

    def _write(self, one: _Finished) -> None:
        assert self._cache is not None
        count = len(one.tokens)
        blocks = torch.tensor(one.blocks[: -(-count // self.block_size)], dtype=torch.int64)
        rows = self._cache[blocks.to(self._cache.device)].flatten(0, 1)[:count]
        states = rows.cpu().contiguous()
        path = self.path_of(one.request)
        # Whoever finds the file finds all of it.
        part = path.with_suffix(".part")
        self.folder.mkdir(parents=True, exist_ok=True)
        save_file({"hidden_states": states, "token_ids": torch.tensor(one.tokens)}, part)
        os.replace(part, path)

    def path_of(self, request: str) -> Path:
        """The file of a request, whose id may be the client's."""
        return self.folder / f"{quote(request, safe='')}.safetensors"

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Keep the request's blocks until its states are written, and name the file."""
        return self.request_finished(request, block_ids[self.group])

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """The same, given the blocks of the states."""
        wanted = list(request.prompt_token_ids or [])
        if (request.kv_transfer_params or {}).get("include_output_tokens"):
            wanted = list(request.all_token_ids)[:-1]
        # An aborted request may have had less computed.
        tokens = wanted[: request.num_computed_tokens]
        if not tokens:
            return False, None
        self._ended.append(_Finished(request.request_id, tokens, list(block_ids)))
        return True, {"hidden_states_path": str(self.path_of(request.request_id))}

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """Requests that ended since the last step."""
        step = _Step(self._ended)
        self._ended = []
        return step

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """None: nothing is loaded."""
        return 0, False

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """Nothing: nothing is loaded."""

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Nothing: nothing is loaded."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: nothing is loaded."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing: the layer keeps the states itself."""

    def wait_for_save(self) -> None:
        """Nothing: files are written when requests have ended."""


def folder_of(vllm_config: VllmConfig) -> Path:
    """Where files are written.

    Raises:
        InvalidInputError: the connector's config names no folder.
    """
    transfer = vllm_config.kv_transfer_config
    given = None
    if transfer is not None:
        given = transfer.get_from_extra_config(FOLDER_KEY, None)
    if not given:
        raise InvalidInputError(
            f"kv_connector={CONNECTOR!r} without {FOLDER_KEY}",
            "hidden states are written to files in that folder",
            f'Add "kv_connector_extra_config": {{"{FOLDER_KEY}": "DIR"}} to kv_transfer_config.',
        )
    return Path(given)


def read_hidden_states(path: str | Path, seconds: float = 60.0) -> dict[str, torch.Tensor]:
    """``hidden_states [T, m, H]`` and ``token_ids [T]`` of a file that may not be written yet.

    Args:
        path: as the request's output names it.
        seconds: to wait for it.

    Raises:
        TimeoutError: there is no such file by then.
    """
    end = time.monotonic() + seconds
    while not Path(path).exists():
        if time.monotonic() >= end:
            raise TimeoutError(
                f"{path}: not written within {seconds} s; files are written with the engine's next "
                "step. Read it where the engine runs, or wait longer"
            )
        time.sleep(0.01)
    return load_file(path)


def register_connector() -> None:
    """Let ``kv_connector`` name the connector; may be called repeatedly."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if CONNECTOR not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(CONNECTOR, __name__, CONNECTOR)


def _group_of(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> tuple[int, int]:
    """Number of the group of hidden states, and tokens of a block of it."""
    speculative = vllm_config.speculative_config
    if speculative is None or speculative.method != "extract_hidden_states":
        raise InvalidInputError(
            f"kv_connector={CONNECTOR!r} with the speculative method "
            f"{None if speculative is None else speculative.method!r}",
            "the method extract_hidden_states alone keeps hidden states",
            "Set it, or leave the connector out.",
        )
    # Of a group whose layers differ a scheduler knows the kind of one; it has all of their names.
    found = [
        (number, group.kv_cache_spec.block_size)
        for number, group in enumerate(kv_cache_config.kv_cache_groups)
        if any(_LAYER in name for name in group.layer_names)
    ]
    if len(found) != 1:
        raise InvalidInputError(
            f"{len(found)} groups of caches with a layer {_LAYER!r}",
            "vLLM's extract_hidden_states has one, which holds the hidden states",
            "Serve with vLLM 0.27.1.",
        )
    return found[0]
