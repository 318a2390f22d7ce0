"""The connector that writes hidden states, on both of its sides."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_specdec.vllm import hidden_states
from ascend_specdec.vllm.config import check_speculation
from ascend_specdec.vllm.hidden_states import (
    CONNECTOR,
    AscendHiddenStatesConnector,
    read_hidden_states,
    register_connector,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, HiddenStateCacheSpec

BLOCK, LAYERS, HIDDEN = 4, 2, 3


def config_of(folder: Path | None) -> Any:
    extra = {} if folder is None else {"shared_storage_path": str(folder)}
    transfer = SimpleNamespace(
        kv_connector=CONNECTOR,
        get_from_extra_config=lambda key, default: extra.get(key, default),
    )
    method = SimpleNamespace(method="extract_hidden_states")
    return SimpleNamespace(kv_transfer_config=transfer, speculative_config=method)


def caches_of(groups: int = 1) -> Any:
    states = HiddenStateCacheSpec(
        block_size=BLOCK, num_kv_heads=LAYERS, head_size=HIDDEN, dtype=torch.float32
    )
    rows = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float32)
    given = [(rows, ["model.layers.0.attn"]), *[(states, ["cache_only_layers.2"])] * groups]
    return SimpleNamespace(
        kv_cache_groups=[
            SimpleNamespace(kv_cache_spec=spec, layer_names=names) for spec, names in given
        ]
    )


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, torch.Tensor]:
    """The scheduler's side, a worker's side, and its cache ``[blocks, BLOCK, LAYERS, HIDDEN]``."""
    made: list[Any] = [
        AscendHiddenStatesConnector(config_of(tmp_path / "states"), role, caches_of())
        for role in (0, 1)
    ]
    cache = torch.arange(8.0 * BLOCK * LAYERS * HIDDEN).view(8, BLOCK, LAYERS, HIDDEN)
    monkeypatch.setattr(hidden_states, "get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(
        hidden_states, "get_layers_from_vllm_config", lambda config, kind, names: names[:1]
    )
    made[1].register_kv_caches({"states": cache})
    return made[0], made[1], cache


def request(name: str, prompt: list[int], said: list[int], computed: int, **wish: Any) -> Any:
    return SimpleNamespace(
        request_id=name,
        prompt_token_ids=prompt,
        all_token_ids=prompt + said,
        num_computed_tokens=computed,
        kv_transfer_params=wish or None,
    )


def finished(pair: Any, *requests: tuple[Any, list[int]]) -> Any:
    """What a worker reports after a step that tells it of ended requests."""
    scheduler, worker, _ = pair
    for one, blocks in requests:
        scheduler.request_finished_all_groups(one, ([9, 9], blocks))
    worker.bind_connector_metadata(scheduler.build_connector_meta(SimpleNamespace()))
    found = worker.get_finished(set())
    worker.clear_connector_metadata()
    return found


def test_prompts_and_answers(pair: Any) -> None:
    scheduler, _, cache = pair
    whole = request("b", [1, 2, 3], [4, 5, 6, 7], 6, include_output_tokens=True)
    assert finished(pair, (request("a", [1, 2, 3, 4, 5], [6], 5), [7, 2]), (whole, [4, 1])) == (
        {"a", "b"},
        None,
    )
    for name, blocks, tokens in (("a", [7, 2], 5), ("b", [4, 1], 6)):
        found = read_hidden_states(scheduler.path_of(name))
        expected = cache[torch.tensor(blocks)].flatten(0, 1)[:tokens]
        assert torch.equal(found["hidden_states"], expected)
        assert found["token_ids"].tolist() == list(range(1, tokens + 1))
    # What was told once is not told again.
    assert finished(pair) == (None, None)


def test_an_aborted_request_has_what_was_computed(pair: Any) -> None:
    scheduler, _, _ = pair
    assert scheduler.request_finished(request("none", [1, 2], [], 0), []) == (False, None)
    assert finished(pair, (request("few", [1, 2, 3, 4, 5], [], 2), [3])) == ({"few"}, None)
    assert read_hidden_states(scheduler.path_of("few"))["token_ids"].tolist() == [1, 2]
    assert not scheduler.path_of("none").exists()


def test_a_client_s_id_does_not_leave_the_folder(pair: Any) -> None:
    scheduler, _, _ = pair
    path = scheduler.path_of("../../etc/passwd")
    assert path.parent == scheduler.folder
    assert finished(pair, (request("../x", [1], [2], 1), [0])) == ({"../x"}, None)
    assert len(list(scheduler.folder.iterdir())) == 1


def test_another_rank_writes_nothing_and_reports_all_the_same(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, worker, cache = pair
    monkeypatch.setattr(hidden_states, "get_tensor_model_parallel_rank", lambda: 1)
    worker.register_kv_caches({"states": cache})
    assert finished(pair, (request("a", [1], [2], 1), [0])) == ({"a"}, None)
    assert not scheduler.path_of("a").exists()


def test_a_file_that_never_comes(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match="next step"):
        read_hidden_states(tmp_path / "absent", 0.02)


def test_what_cannot_be_written_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="shared_storage_path"):
        AscendHiddenStatesConnector(config_of(None), 0, caches_of())  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="2 groups"):
        AscendHiddenStatesConnector(config_of(tmp_path), 0, caches_of(2))  # type: ignore[arg-type]
    given = SimpleNamespace(rejection_sample_method="standard", method="extract_hidden_states")
    config: Any = config_of(None)
    config.speculative_config, config.additional_config = given, {}
    config.model_config = SimpleNamespace(is_hybrid=True)
    config.cache_config = SimpleNamespace(enable_prefix_caching=False)
    with pytest.raises(InvalidInputError, match="shared_storage_path"):
        check_speculation(config)
    config.cache_config.enable_prefix_caching = True
    with pytest.raises(InvalidInputError, match="enable_prefix_caching=True"):
        check_speculation(config)
    config.model_config.is_hybrid = False
    with pytest.raises(InvalidInputError, match="shared_storage_path"):
        check_speculation(config)


def test_states_in_one_group_with_keys_and_values(tmp_path: Path) -> None:
    """Of which vLLM tells a scheduler one layer's alone."""
    rows = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    names = ["model.layers.0.attn", "cache_only_layers.2"]
    group = SimpleNamespace(kv_cache_spec=rows, layer_names=names)
    for before in ([], caches_of(0).kv_cache_groups):
        caches: Any = SimpleNamespace(kv_cache_groups=[*before, group])
        made = AscendHiddenStatesConnector(config_of(tmp_path), 0, caches)  # type: ignore[arg-type]
        assert (made.group, made.block_size) == (len(before), BLOCK)


def test_upstream_still_names_its_layer_so() -> None:
    import inspect

    from vllm.model_executor.models import extract_hidden_states as upstream

    assert 'f"cache_only_layers.{' in inspect.getsource(upstream)


def test_another_method_keeps_no_states(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    for other in (None, SimpleNamespace(method="eagle3")):
        config.speculative_config = other
        with pytest.raises(InvalidInputError, match="extract_hidden_states alone"):
            AscendHiddenStatesConnector(config, 0, caches_of())  # type: ignore[arg-type]


def test_vllm_finds_it_by_name() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    for _ in range(2):
        register_connector()
    assert KVConnectorFactory.get_connector_class_by_name(CONNECTOR) is AscendHiddenStatesConnector
