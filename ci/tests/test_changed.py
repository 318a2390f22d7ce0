"""A change runs what it can break, and an unknown path is an error."""

import subprocess
from pathlib import Path

import pytest

from ci import changed
from tools.workspace import ROOT, packages


def test_a_package_runs_itself_and_its_dependants() -> None:
    sessions = changed.sessions_for(["packages/ascend-models-kimi/src/ascend_models_kimi/a.py"])
    assert sessions == [
        "lint",
        "tests-repo",
        "tests-ascend-models-kimi",
        "tests-ascend-vllm-plugin",
        "engine",
        "engine-npu",
        "serve",
    ]


def test_the_lowest_package_runs_every_package() -> None:
    sessions = changed.sessions_for(["packages/ascend-ops-core/pyproject.toml"])
    assert {f"tests-{name}" for name in packages()} <= set(sessions)


def test_a_package_with_operators_shows_every_proof_again() -> None:
    sessions = changed.sessions_for(["packages/ascend-attention/src/ascend_attention/a.py"])
    assert {"tests-ascend-ops-core", "tests-ascend-fused-moe"} <= set(sessions)
    assert sessions[-8:] == [*changed.PROOFS, "operators", *changed.WHOLE_STACK]


def test_several_changes_add_up_in_the_usual_order() -> None:
    paths = ["packages/ascend-specdec/README.md", "docs/index.md"]
    sessions = changed.sessions_for(paths)
    assert {"docs", "tests-ascend-specdec"} <= set(sessions)
    assert sessions == [one for one in changed.all_sessions() if one in sessions]


@pytest.mark.parametrize(
    "path",
    ["uv.lock", "pyproject.toml", "noxfile.py", "tools/dev", "ci/changed.py", ".ci/run"],
)
def test_a_shared_file_runs_everything(path: str) -> None:
    assert changed.sessions_for([path]) == changed.all_sessions()


def test_a_page_needs_no_package_tests() -> None:
    assert changed.sessions_for(["docs/architecture.md", "README.md"]) == ["tests-repo", "docs"]


def test_nothing_changed_runs_nothing() -> None:
    assert changed.sessions_for([]) == []


@pytest.mark.parametrize("path", ["new-folder/x.py", "packages/unknown/a.py", "packages/README.md"])
def test_an_unknown_path_is_an_error_naming_it(path: str) -> None:
    with pytest.raises(changed.UnknownPathError, match=path):
        changed.sessions_for(["uv.lock", path])


def test_every_file_of_the_repository_has_a_rule() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [path for path in listed.stdout.split("\0") if path]
    assert len(paths) > 50
    changed.sessions_for(paths)


def test_every_session_exists_in_the_noxfile() -> None:
    noxfile = (ROOT / "noxfile.py").read_text()
    for session in changed.all_sessions():
        if session.removeprefix("tests-") not in packages():
            assert f'"{session}"' in noxfile or f"def {session}(" in noxfile, session


def test_changes_are_read_from_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True)

    git("init", "-q")
    (tmp_path / "old name.py").write_text("1\n" * 50)
    (tmp_path / "same.py").write_text("1\n")
    git("add", ".")
    git("commit", "-qm", "base")
    (tmp_path / "old name.py").rename(tmp_path / "moved.py")
    git("add", "--all")
    (tmp_path / "untracked.py").write_text("1\n")
    monkeypatch.setattr(changed, "ROOT", tmp_path)
    assert changed.changed_paths("HEAD") == ["moved.py", "old name.py", "untracked.py"]
