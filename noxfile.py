"""The tasks. `./tools/dev TASK` runs a session of this name; `./tools/dev list` lists them.

Sessions make their own environments from uv.lock (tools/environments.py), so nox makes none.
"""

from __future__ import annotations

import sys
import tempfile
from functools import cache
from pathlib import Path

import nox
from nox.command import CommandFailed

sys.path.insert(0, str(Path(__file__).resolve().parent))

from tools import environments, torch_npu_wheels
from tools.workspace import ROOT, Package, packages, with_lower

nox.options.default_venv_backend = "none"
nox.options.error_on_external_run = False
nox.options.sessions = []

REPORTS = environments.CACHE / "reports"
PROOFS = environments.CACHE / "proofs"
# Models of tests are so small that a second thread costs more than it computes, above all beside
# another session. Tests of threads ask for more.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
PYTEST = ("-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT))


@nox.session
def lint(session: nox.Session) -> None:
    """ruff, import contracts and mypy on everything."""
    env = environments.development()
    failed = []
    for command in (
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        ("lint-imports", "--no-cache"),
        ("mypy", *[f"packages/{name}/src" for name in packages()]),
        ("mypy", "noxfile.py", "benchmarks", "ci", "tools"),
    ):
        try:
            _run(session, env, env.program(command[0]), *command[1:])
        except CommandFailed:
            failed.append(" ".join(command[:2]))
    if failed:
        session.error(f"failed: {', '.join(failed)}")


def _tests_of(package: Package) -> None:
    @nox.session(name=f"tests-{package.name}")
    def tests(session: nox.Session) -> None:
        wheels = _wheels(package)
        if "cpu-kernels" in package.extras:
            # The tests need the optional kernels; that the package does not is shown here.
            bare = environments.isolated(f"bare-{package.name}", package, [], wheels)
            _run(session, bare, str(bare.python), "-P", "-c", f"import {package.import_name}")
        extras = [one for one in ("cpu", "cpu-kernels", "test") if one in package.extras]
        env = environments.isolated(f"tests-{package.name}", package, extras, wheels)
        _pytest(
            session,
            env,
            ["-m", "not engine and not engine_npu and not serve"],
            [package.directory / "tests"],
        )

    tests.__doc__ = f"{package.name}: its wheel in a clean environment, its unit tests."


for _package in packages().values():
    _tests_of(_package)


@nox.session(name="tests-repo")
def tests_repo(session: nox.Session) -> None:
    """Tests of the lock, the tools and the choice of what CI runs."""
    _pytest(session, environments.development(), [], [ROOT / "tools", ROOT / "ci"])


@nox.session
def interpreter(session: nox.Session) -> None:
    """Every Triton kernel through Triton's interpreter, against its definition."""
    env = environments.development()
    _pytest(session, env, ["-m", "interpreter"], [ROOT / "packages"], TRITON_INTERPRET="1")


@nox.session
def compile(session: nox.Session) -> None:
    """Every Triton kernel through the Ascend compiler; `-- --compile-new` renews the ledgers."""
    packages_folder = ROOT / "packages"
    folders = [
        packages_folder / "ascend-ops-core" / "tests" / "testing" / "compiler",
        *sorted(packages_folder.glob("*/tests/proofs/test_compile.py")),
        *sorted(packages_folder.glob("*/tests/proofs/test_lowered.py")),
    ]
    _pytest(session, environments.compiler(), ["-m", "compile"], folders)


@nox.session
def contract(session: nox.Session) -> None:
    """Every torch_npu call against the schemas and meta kernels of the supported wheels."""
    _pytest(session, environments.development(), ["-m", "contract"], [ROOT / "packages"], **_npu())


@nox.session
def sim(session: nox.Session) -> None:
    """Everything that runs on the simulated NPU."""
    variables = {**_npu(), "TRITON_INTERPRET": "1"}
    _pytest(session, environments.development(), ["-m", "sim"], [ROOT / "packages"], **variables)


@nox.session
def operators(session: nox.Session) -> None:
    """Whether docs/ops.md is what the sessions with proofs recorded; `-- --write` renews it."""
    env = environments.development()
    mode = [] if "--write" in session.posargs else ["--check"]
    _run(session, env, str(env.python), str(ROOT / "tools" / "ops_page.py"), *mode)


@nox.session
def engine(session: nox.Session) -> None:
    """Tests inside the real vLLM, one process."""
    env = environments.development()
    _pytest(session, env, ["-m", "engine"], [ROOT / "packages"], **ONE_THREAD)


@nox.session(name="engine-npu")
def engine_npu(session: nox.Session) -> None:
    """Tests inside the real vLLM on the simulated NPU, which changes torch for the process."""
    folder = ROOT / "packages" / "ascend-vllm-plugin" / "tests" / "engine"
    simulated = {"ASCEND_SIMULATED_NPU": "family=A3,kernels=reference"}
    variables = {**_npu(), **simulated, **ONE_THREAD}
    env = environments.development()
    _pytest(session, env, ["-m", "engine_npu"], [folder], **variables)
    if not session.posargs:
        _run(session, env, str(env.python), str(ROOT / "tools" / "npu_calls_page.py"), "--check")


@nox.session
def serve(session: nox.Session) -> None:
    """Tests of vLLM's HTTP server and of engines in several processes."""
    _pytest(session, environments.development(), ["-m", "serve"], [ROOT / "packages"])


@nox.session
def demo(session: nox.Session) -> None:
    """Serve the checkpoint that ships here and stream a completion from it."""
    env = environments.development()
    _run(session, env, env.program("ascend-vllm"), "demo", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Benchmarks; arguments go to `python -m benchmarks`."""
    env = environments.development()
    simulated = _npu() if "host-cost" in session.posargs else {}
    _run(session, env, str(env.python), "-m", "benchmarks", *session.posargs, **simulated)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation, broken links being errors."""
    env = environments.tools_group("docs")
    site = str(environments.CACHE / "site")
    command = (env.program("mkdocs"), "build", "--strict", "--site-dir", site, *session.posargs)
    # Material prints an advertisement for its successor otherwise.
    _run(session, env, *command, NO_MKDOCS_2_WARNING="1")


@nox.session
def build(session: nox.Session) -> None:
    """Every wheel and source archive, into dist/."""
    env = environments.tools_group("build")
    folder = environments.emptied(ROOT / "dist")
    for package in packages().values():
        environments.build(package, folder)
    names = [str(file) for file in sorted(folder.iterdir()) if file.suffix in (".whl", ".gz")]
    _run(session, env, env.program("twine"), "check", "--strict", *names)


def _npu() -> dict[str, str]:
    """Return what tests need to read the files of torch_npu, which must not be imported."""
    wheels = torch_npu_wheels.fetch()
    return {
        "ASCEND_TORCH_NPU_WHEELS": str(wheels),
        "ASCEND_TORCH_NPU_WHEEL": str(wheels / torch_npu_wheels.DEFAULT),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }


def _wheels(package: Package) -> Path:
    """Return the folder with the wheels of `package` and of those below it, built in this run."""
    for lower in with_lower(package.name):
        _build_wheel(lower.name)
    return _wheel_folder()


@cache
def _wheel_folder() -> Path:
    return environments.emptied(environments.CACHE / "wheels")


@cache
def _build_wheel(name: str) -> None:
    environments.build(packages()[name], _wheel_folder(), "--wheel")


def _pytest(
    session: nox.Session,
    env: environments.Environment,
    options: list[str],
    folders: list[Path],
    **variables: str,
) -> None:
    # What the session proves goes to a file of its own; tools/ops_page.py reads them all.
    records = PROOFS / f"{session.name}.jsonl"
    records.parent.mkdir(parents=True, exist_ok=True)
    records.write_text("")
    # Spinning OpenMP threads slow everything down many times over beside another process.
    variables = {"OMP_WAIT_POLICY": "PASSIVE", "ASCEND_PROOFS": str(records)} | variables
    # In a folder of its own, so that no source tree is importable by accident.
    with tempfile.TemporaryDirectory(prefix="ascend-tests-") as elsewhere, session.chdir(elsewhere):
        _run(
            session,
            env,
            str(env.python),
            *PYTEST,
            *options,
            f"--junitxml={REPORTS / session.name}.xml",
            *[str(folder) for folder in folders],
            *session.posargs,
            **variables,
        )


def _run(
    session: nox.Session, env: environments.Environment, *command: str, **variables: str
) -> None:
    # nox would add the variables that `variables()` leaves out.
    given = env.variables() | variables
    session.run(*command, env=given, include_outer_env=False, external=True)
