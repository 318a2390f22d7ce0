"""`ascend-vllm demo` and its server handling, against a fake `vllm serve` (no vllm needed)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ascend_vllm_plugin.cli import app, demo, server
from ascend_vllm_plugin.cli.environment import Facts
from ascend_vllm_plugin.cli.server import ServerError, VllmServer
from ascend_vllm_plugin.cli.stream import CompletionError, stream_completion
from typer.testing import CliRunner

FAKE = str(Path(__file__).with_name("fake_vllm_server.py"))
TEXT = " there was a fox."


@pytest.fixture
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use the fake server; the file that will hold its process ids."""
    monkeypatch.setattr(server, "serve_command", lambda: [sys.executable, FAKE])
    monkeypatch.setattr(demo, "require_environment", lambda: None)
    file = tmp_path / "pids"
    monkeypatch.setenv("FAKE_VLLM_PIDS", str(file))
    monkeypatch.setenv("FAKE_VLLM_ARGS", str(tmp_path / "arguments"))
    return file


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    for name in demo.MODEL_FILES:
        (directory / name).touch()
    (directory / "config.json").write_text('{"max_position_embeddings": 4096}')
    return directory


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie that nobody reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def assert_all_ended(file: Path) -> None:
    started = [int(pid) for pid in file.read_text().split()]
    assert len(started) == 2
    deadline = time.monotonic() + 10
    while any(map(alive, started)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, started))


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app.app, ["demo", *arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_streams_text_and_reports_speed_acceptance_and_device(
    pids: Path, model: Path, tmp_path: Path
) -> None:
    log = tmp_path / "server.log"
    code, output = invoke("--model", str(model), "--prompt", "Once [upon]", "--log", str(log))
    assert code == 0, output
    assert f"Once [upon]{TEXT}" in output
    assert "10 tokens" in output
    assert "tokens/s" in output
    # The warm-up drafted 8 as well: only the second request counts.
    assert "6 of 8 draft tokens accepted (75%)" in output
    assert "no NPU was used" in output
    assert str(log) in output
    assert_all_ended(pids)


def test_arguments_reach_the_server(pids: Path, model: Path, tmp_path: Path) -> None:
    code, output = invoke(
        "--model", str(model), "-k", "3", "--dtype", "bfloat16", "--max-model-len", "300"
    )
    assert code == 0, output
    given = json.loads((tmp_path / "arguments").read_text())
    assert given[0] == str(model)
    assert given[given.index("--dtype") + 1] == "bfloat16"
    assert given[given.index("--max-model-len") + 1] == "300"
    speculation = json.loads(given[given.index("--speculative-config") + 1])
    assert speculation == {"method": "mtp", "num_speculative_tokens": 3}
    assert "--enforce-eager" in given


def test_without_speculation(pids: Path, model: Path, tmp_path: Path) -> None:
    code, output = invoke("--model", str(model), "--no-speculation")
    assert code == 0, output
    assert "Speculation: off." in output
    assert "--speculative-config" not in json.loads((tmp_path / "arguments").read_text())


def test_keep_leaves_the_server_and_says_how_to_use_and_stop_it(pids: Path, model: Path) -> None:
    code, output = invoke("--model", str(model), "--keep")
    leader = int(pids.read_text().split()[0])
    try:
        assert code == 0, output
        assert alive(leader)
        assert "curl http://127.0.0.1:" in output
        assert f"kill -- -{leader}" in output
    finally:
        os.killpg(leader, signal.SIGKILL)
        os.waitpid(leader, 0)


@pytest.mark.parametrize(
    ("mode", "extra", "complaint"),
    [
        ("crash", (), "ValueError: the fake checkpoint is broken"),
        ("hang", ("--startup-timeout", "2"), "not ready after 2 s (stage: "),
        ("refuse", ("--keep",), '400: {"error": "the prompt is too long"}'),
        ("broken", ("--keep",), "without usage"),
    ],
)
def test_failures_are_explained_and_end_the_server(
    pids: Path,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    extra: tuple[str, ...],
    complaint: str,
) -> None:
    monkeypatch.setenv("FAKE_VLLM", mode)
    code, output = invoke("--model", str(model), *extra)
    assert code == 1
    assert complaint in output
    assert_all_ended(pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("mode", ["hang", "stall"])
def test_signals_end_the_server(pids: Path, model: Path, number: int, mode: str) -> None:
    driver = (
        "from ascend_vllm_plugin.cli import demo, main, server\n"
        f"server.serve_command = lambda: [{sys.executable!r}, {FAKE!r}]\n"
        "demo.require_environment = lambda: None\n"
        "main()\n"
    )
    command = [sys.executable, "-c", driver, "demo", "--model", str(model), "--keep"]
    process = subprocess.Popen(
        command,
        env={**os.environ, "FAKE_VLLM": mode, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A job in the background starts with interrupts ignored, and its children with it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    mark = "loading the weights" if mode == "hang" else "there"
    seen = ""
    while mark not in seen:
        piece = process.stdout.read(1)
        assert piece, f"ended early: {seen}"
        seen += piece
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert_all_ended(pids)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            ("--max-tokens", "300", "--max-model-len", "300"),
            "300 new tokens and a prompt do not fit",
        ),
        (("--max-model-len", "5000"), "5000 tokens, but the model's positions end at 4096"),
        (("--prompt", ""), "the prompt is empty"),
        (("--log", "no-such-directory/log"), "no-such-directory does not exist"),
    ],
)
def test_what_cannot_work_is_refused_before_the_long_start(
    pids: Path, model: Path, options: tuple[str, ...], complaint: str
) -> None:
    code, output = invoke("--model", str(model), *options)
    assert code == 1
    assert complaint in output
    assert not pids.exists()


def test_a_port_in_use_is_refused(pids: Path, model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, output = invoke("--model", str(model), "--port", str(port))
    assert code == 1
    assert f"port {port} of 127.0.0.1 is in use" in output
    assert not pids.exists()


def test_a_proxy_does_not_come_between(
    pids: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = f"http://127.0.0.1:{server.free_port()}"
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, nowhere)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    code, output = invoke("--model", str(model), "--startup-timeout", "20")
    assert code == 0, output


def test_a_directory_that_is_no_checkpoint_is_refused(pids: Path, model: Path) -> None:
    (model / "model.safetensors").unlink()
    code, output = invoke("--model", str(model))
    assert code == 1
    assert f"{model} has no model.safetensors" in output.replace("\n", "")
    assert not pids.exists()


@pytest.mark.parametrize("tokens", ["0", "4"])
def test_draft_length_out_of_range_is_refused(pids: Path, model: Path, tokens: str) -> None:
    code, output = invoke("--model", str(model), "-k", tokens)
    assert code == 2
    assert "--speculative-tokens" in output
    assert not pids.exists()


def test_an_unfit_environment_is_refused_with_the_remedy(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = Facts(python="3.11.7", executable="python", system="Linux", versions={})
    monkeypatch.setattr(demo, "collect", lambda: bare)
    code, output = invoke("--model", str(model))
    assert code == 1
    assert "vllm: not installed" in output
    assert "ascend-vllm-plugin[cpu]" in output


def test_a_stopped_server_says_so(model: Path, pids: Path) -> None:
    process = VllmServer(model)
    with pytest.raises(ServerError, match="not started"):
        process.wait_ready(1)
    process.stop()


def test_stage_and_device_come_from_the_log(model: Path, tmp_path: Path) -> None:
    process = VllmServer(model, log=tmp_path / "log")
    assert (process.stage(), process.device()) == ("importing vLLM", None)
    process.log.write_text(
        "Initializing a V1 LLM engine (v0) with config: seed=0, device_config=cpu, x=1\n"
        "Starting to load model DIR...\n"
    )
    assert (process.stage(), process.device()) == ("loading the weights", "cpu")


WORKER = "(Worker pid=15) ERROR 11-29 20:13:09 [multiproc_executor.py:912] "
CORE = "(EngineCore pid=13) ERROR 11-29 20:13:15 [core.py:1349] "
FAILED_START = f"""\
(APIServer pid=9) INFO 11-29 20:13:01 [api_utils.py:273] starting
{WORKER}WorkerProc failed to start.
{WORKER}Traceback (most recent call last):
{WORKER}  File "executor.py", line 1, in worker_main
(EngineCore pid=13) INFO 11-29 20:13:09 [multiproc_executor.py:440] waiting
{WORKER}    raise CheckpointError(
{WORKER}weights.CheckpointError: the checkpoint does not fit: 1 problem(s)
{WORKER}  - missing layers.1.attn.wq_a.weight [64, 128]
{WORKER}Nothing was loaded.
{CORE}EngineCore failed to start.
{CORE}Traceback (most recent call last):
{CORE}  File "core.py", line 2, in run_engine_core
{CORE}Exception: WorkerProc initialization failed.
"""


def test_the_first_error_is_found_behind_the_ones_that_follow_from_it() -> None:
    assert server.first_error(FAILED_START) == (
        "weights.CheckpointError: the checkpoint does not fit: 1 problem(s)\n"
        "  - missing layers.1.attn.wq_a.weight [64, 128]\n"
        "Nothing was loaded."
    )


def test_of_chained_errors_the_last_is_meant() -> None:
    log = (
        'Traceback (most recent call last):\n  File "a.py", line 1\nStopIteration: a\n\n'
        "During handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "b.py", line 1\nKeyError: b\n'
    )
    assert server.first_error(log) == "KeyError: b"
    assert server.first_error("INFO nothing happened\n") is None


def test_two_starts_are_refused(model: Path, pids: Path) -> None:
    with VllmServer(model) as process:
        process.wait_ready(20)
        with pytest.raises(ServerError, match="runs already"):
            process.start()


def test_a_server_that_ignores_sigterm_is_killed(model: Path, tmp_path: Path) -> None:
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True)"
    process = VllmServer(model, log=tmp_path / "log")
    process.command = [sys.executable, "-c", f"{stubborn}; time.sleep(600)"]
    process.start()
    pid = process.pid
    while "up" not in process.log_tail():
        time.sleep(0.05)
    process.stop(grace=0.5)
    assert not alive(pid)


def test_no_connection_is_a_completion_error() -> None:
    with pytest.raises(CompletionError, match="connection"):
        stream_completion(
            f"http://127.0.0.1:{server.free_port()}",
            model="m",
            prompt="p",
            max_tokens=1,
            temperature=0,
        )
