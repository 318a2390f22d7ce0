"""Whether a target is rotated is found out wherever its weights come from, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_specdec.quarot import DESCRIPTION, EMBEDDINGS, load_quarot_target_layer, rotation_of
from ascend_specdec.vllm.target_files import TargetFiles
from safetensors.torch import save_file

pytest.importorskip("vllm")

WIDTH, COMMIT = 8, "0123456789abcdef0123456789abcdef01234567"


def rotation() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.linalg.qr(torch.randn(WIDTH, WIDTH))[0].contiguous()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache of one repository, and no network; returns the folder of its files."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    root = tmp_path / "models--some--target"
    (root / "refs").mkdir(parents=True)
    (root / "refs/main").write_text(COMMIT)
    files = root / "snapshots" / COMMIT
    files.mkdir(parents=True)
    return files


def rotate(folder: Path) -> torch.Tensor:
    """Write a rotated target of one tensor; returns its embedding before the rotation."""
    embedding = torch.randn(5, WIDTH)
    save_file({EMBEDDINGS[0]: embedding @ rotation()}, folder / "model.safetensors")
    save_file({"other": torch.ones(2), "global_rotation": rotation()}, folder / "q.safetensors")
    named = {"quarot": {"rotation_map": {"global_rotation": "q.safetensors"}}}
    (folder / DESCRIPTION).write_text(json.dumps({"optional": named}))
    return embedding


def known_to_lack(folder: Path, *names: str) -> None:
    """Note what the hub did not have, as its client does."""
    absent = folder.parent.parent / ".no_exist" / COMMIT
    absent.mkdir(parents=True, exist_ok=True)
    for name in names:
        (absent / name).touch()


def test_a_rotated_target_is_found_by_its_name(repository: Path, tmp_path: Path) -> None:
    embedding = rotate(repository)
    known_to_lack(repository, "model.safetensors.index.json")
    for model in ("some/target", str(repository)):
        files = TargetFiles(model, cache=str(tmp_path))
        found = rotation_of(files, WIDTH)
        assert found is not None
        assert torch.equal(found, rotation())
        rows = load_quarot_target_layer(files, EMBEDDINGS, found)
        torch.testing.assert_close(rows, embedding)


def test_an_index_names_files_by_name(repository: Path, tmp_path: Path) -> None:
    embedding = rotate(repository)
    (repository / "model.safetensors").rename(repository / "part.safetensors")
    index = {"weight_map": {EMBEDDINGS[0]: "part.safetensors"}}
    (repository / "model.safetensors.index.json").write_text(json.dumps(index))
    files = TargetFiles("some/target", cache=str(tmp_path))
    rows = load_quarot_target_layer(files, EMBEDDINGS, rotation())
    torch.testing.assert_close(rows, embedding)


def test_what_cannot_be_read_is_not_taken_for_unrotated(repository: Path, tmp_path: Path) -> None:
    files = TargetFiles("some/target", cache=str(tmp_path))
    for model in (files, TargetFiles("other/target", cache=str(tmp_path)), TargetFiles("a/b/c")):
        with pytest.raises(InvalidInputError, match=rf"{model.model}.*{DESCRIPTION}") as error:
            rotation_of(model, WIDTH)
        assert "give its folder" in str(error.value)
    known_to_lack(repository, DESCRIPTION)
    assert rotation_of(files, WIDTH) is None


def test_the_hub_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx
    from huggingface_hub.errors import GatedRepoError, RemoteEntryNotFoundError
    from vllm.transformers_utils import repo_utils

    answers: list[Any] = [RemoteEntryNotFoundError, GatedRepoError]
    asked = []

    class Hub:
        def hf_hub_download(self, model: str, name: str, **where: Any) -> str:
            asked.append((model, name, where))
            request = httpx.Request("HEAD", "http://hub")
            raise answers.pop(0)("no", response=httpx.Response(404, request=request))

    monkeypatch.setattr(repo_utils, "hf_api", Hub)
    files = TargetFiles("some/target", "v2", str(tmp_path))
    assert rotation_of(files, WIDTH) is None
    with pytest.raises(InvalidInputError, match="some/target"):
        rotation_of(files, WIDTH)
    assert (
        asked == [("some/target", DESCRIPTION, {"revision": "v2", "cache_dir": str(tmp_path)})] * 2
    )
