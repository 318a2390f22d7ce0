"""A draft for a rotated target: what is read of its checkpoint, and what becomes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_specdec.vllm.target_files import TargetFiles

pytestmark = pytest.mark.engine

WIDTH = 8


def rotation() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.linalg.qr(torch.randn(WIDTH, WIDTH)).Q.contiguous()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A checkpoint of two files with a description that names its rotation."""
    from safetensors.torch import save_file

    embedding = torch.randn(5, WIDTH)
    save_file({"model.layers.0.x": torch.zeros(1)}, tmp_path / "a.safetensors")
    save_file({"model.embed_tokens.weight": embedding @ rotation()}, tmp_path / "b.safetensors")
    save_file({"embedding": embedding}, tmp_path / "expected.pt")
    (tmp_path / "optional").mkdir()
    save_file({"global_rotation": rotation()}, tmp_path / "optional/quarot.bin")
    path: Any = {"global_rotation": "optional/quarot.bin"}
    description = {"optional": {"quarot": {"rotation_map": path}}}
    (tmp_path / "quant_model_description.json").write_text(json.dumps(description))
    return tmp_path


def test_three_streams_are_rotated_back() -> None:
    from ascend_specdec.quarot import compute_rotation_matrix3, rotate_inputs

    q, weight = rotation(), torch.randn(4, 3 * WIDTH)
    streams = torch.randn(6, 3, WIDTH)
    rotated = (streams @ q).flatten(1)
    torch.testing.assert_close(rotated @ rotate_inputs(weight, q).T, streams.flatten(1) @ weight.T)
    torch.testing.assert_close(rotate_inputs(weight, q), weight @ compute_rotation_matrix3(q))
    half = rotate_inputs(weight.bfloat16(), q)
    assert half.dtype == torch.bfloat16
    with pytest.raises(InvalidInputError, match="whole streams of 8"):
        rotate_inputs(weight[:, :-1], q)


def test_only_the_named_tensor_is_read(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ascend_specdec import quarot
    from safetensors.torch import load_file

    opened: list[str] = []
    open_one = quarot.safe_open

    def watched(path: Path, framework: str) -> Any:
        file = open_one(path, framework=framework)

        class Watched:
            def __enter__(self) -> Watched:
                file.__enter__()
                return self

            def __exit__(self, *error: Any) -> None:
                file.__exit__(*error)

            def keys(self) -> Any:
                return file.keys()

            def get_tensor(self, name: str) -> torch.Tensor:
                opened.append(name)
                return file.get_tensor(name)

        return Watched()

    monkeypatch.setattr(quarot, "safe_open", watched)
    names = quarot.EMBEDDINGS
    expected = load_file(target / "expected.pt")["embedding"]
    files = TargetFiles(str(target))
    q = quarot.rotation_of(files, WIDTH)
    assert q is not None
    torch.testing.assert_close(quarot.load_quarot_target_layer(files, names, q), expected)
    assert opened == ["global_rotation", "model.embed_tokens.weight"]
    # An index says where a tensor is without any file being opened.
    index = {"weight_map": {"model.embed_tokens.weight": "b.safetensors"}}
    (target / "model.safetensors.index.json").write_text(json.dumps(index))
    (target / "a.safetensors").write_bytes(b"no checkpoint")
    torch.testing.assert_close(quarot.load_quarot_target_layer(files, names, q), expected)


def test_a_target_that_is_not_rotated(target: Path) -> None:
    from ascend_specdec.quarot import rotation_of

    files = TargetFiles(str(target))
    description = target / "quant_model_description.json"
    description.write_text(json.dumps({"optional": {"quarot": {}}}))
    assert rotation_of(files, WIDTH) is None
    description.unlink()
    assert rotation_of(files, WIDTH) is None


def test_what_cannot_be_a_rotation_is_refused(target: Path) -> None:
    from ascend_specdec import quarot
    from safetensors.torch import save_file

    files = TargetFiles(str(target))
    with pytest.raises(InvalidInputError, match="16 channels"):
        quarot.rotation_of(files, 16)
    file = target / "optional/quarot.bin"
    save_file({"global_rotation": rotation() * 1.01}, file)
    with pytest.raises(InvalidInputError, match="orthogonal"):
        quarot.rotation_of(files, WIDTH)
    save_file({"other": rotation()}, file)
    with pytest.raises(InvalidInputError, match="'global_rotation'"):
        quarot.rotation_of(files, WIDTH)
    file.unlink()
    with pytest.raises(InvalidInputError, match="Copy the file"):
        quarot.rotation_of(files, WIDTH)
    with pytest.raises(InvalidInputError, match="holds one of missing"):
        quarot.load_quarot_target_layer(files, ("missing",), rotation())
