"""The lock names files and hashes but no index, and uv takes it."""

import re
import tomllib
from pathlib import Path

import pytest

from tools import lock

UV_LOCK = """\
version = 1

[[package]]
name = "wheel-name"
version = "1.0+local"
source = { registry = "https://mirror.example/simple" }
sdist = { url = "https://files.example/a/wheel_name-1.0.tar.gz", hash = "sha256:aa", size = 1 }
wheels = [
    { url = "https://files.example/b/wheel_name-1.0%2Blocal-py3-none-any.whl", hash = "sha256:bb" },
    { url = "http://10.0.0.1:8080/c/x-1.0-py3-none-any.whl?token=1#f", hash = "sha256:cc" },
]
"""


def test_every_registry_and_address_is_reduced_to_a_name() -> None:
    package = tomllib.loads(lock.normalise(UV_LOCK))["package"][0]
    assert package["source"] == {"registry": "pypi"}
    assert package["sdist"] == {
        "filename": "wheel_name-1.0.tar.gz",
        "hash": "sha256:aa",
        "size": 1,
    }
    assert [wheel["filename"] for wheel in package["wheels"]] == [
        "wheel_name-1.0+local-py3-none-any.whl",
        "x-1.0-py3-none-any.whl",
    ]


def test_normalising_twice_changes_nothing() -> None:
    once = lock.normalise(UV_LOCK)
    assert lock.normalise(once) == once


@pytest.mark.parametrize(
    "source",
    [
        '{ git = "https://forge.example/repo?rev=1#abc" }',
        '{ url = "https://files.example/x.whl", subdirectory = "https://files.example" }',
    ],
)
def test_an_address_of_another_form_is_refused_by_name(source: str) -> None:
    with pytest.raises(lock.LockError, match=r"https://(forge|files)\.example.*released packages"):
        lock.normalise(f'[[package]]\nname = "x"\nsource = {source}\n')


@pytest.mark.parametrize("file", [lock.LOCK, lock.TOOL_PINS], ids=lambda file: file.name)
def test_the_committed_files_hold_no_address_and_no_host(file: Path) -> None:
    text = file.read_text()
    assert lock.addresses(text) == []
    assert re.findall(r"\b(?:[a-z0-9-]+\.)+(?:org|com|net|io|cn)\b", text) == []


def test_every_locked_release_has_files_with_hashes() -> None:
    packages = tomllib.loads(lock.LOCK.read_text())["package"]
    released = [package for package in packages if package["source"] == {"registry": "pypi"}]
    assert len(released) > 100
    for package in released:
        files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
        assert files, package["name"]
        for file in files:
            assert file["hash"].startswith("sha256:"), (package["name"], file)
            assert "/" not in file["filename"], (package["name"], file)


def test_all_other_sources_are_the_workspace() -> None:
    packages = tomllib.loads(lock.LOCK.read_text())["package"]
    kinds = {key for package in packages for key in package["source"]}
    assert kinds == {"registry", "editable", "virtual"}


def test_uv_accepts_the_committed_lock() -> None:
    lock.check()


def test_a_lock_with_an_address_is_not_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = tmp_path / "uv.lock"
    stale.write_text(UV_LOCK)
    monkeypatch.setattr(lock, "LOCK", stale)
    with pytest.raises(lock.LockError, match=r"run \./tools/dev lock"):
        lock.check()


def test_a_missing_uv_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(lock.LockError, match=r"uv is not on PATH.*tools/dev"):
        lock.resolve("--version")
