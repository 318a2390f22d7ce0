"""Start, await and stop a `vllm serve` process: used by the demo, the serve tests, the benchmarks.

    with VllmServer(model, arguments=["--dtype", "float32"]) as server:
        server.wait_ready(timeout=240)
        ... server.url ...

The server runs in a session of its own, so that leaving the block ends it with all its children
(vLLM's engine core and workers are processes of the same group).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

HOST = "127.0.0.1"
POLL_S = 0.25
CHILD_GRACE_S = 3.0
LOG_TAIL_LINES = 30
SPECULATION_COUNTERS = {
    "accepted": "vllm:spec_decode_num_accepted_tokens_total",
    "drafted": "vllm:spec_decode_num_draft_tokens_total",
}

# (text in vLLM's log, what that means). The latest match in the log is what happens now.
_STAGES = (
    ("non-default args", "reading the model's config"),
    ("Resolved architecture", "starting the engine process, which imports vLLM again"),
    ("Initializing a V1 LLM engine", "starting the worker process, which imports vLLM again"),
    ("Starting to load model", "loading the weights"),
    ("Loading weights took", "weights loaded, allocating the key/value caches"),
    ("KV cache size", "key/value caches allocated, warming up"),
    ("init engine (profile", "engine ready, starting the HTTP server"),
    ("Starting vLLM server on", "HTTP server is up"),
)
_FIRST_STAGE = "importing vLLM"
# Who wrote a line, and the logger's own words before the message.
_PREFIX = re.compile(r"^(?:\(\S+ pid=\d+\) )?(?:ERROR \S+ \S+ \[[^\]]+\] )?")
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = ("During handling of the above", "The above exception was")
_DEVICE = re.compile(r"device_config=([\w.:]+)")


class ServerError(RuntimeError):
    """The server did not start, died, or was not ready in time. The text holds the log's tail."""


def serve_command() -> list[str]:
    """What runs `vllm serve` with this interpreter, whatever PATH says."""
    return [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve"]


def first_error(log: str) -> str | None:
    """The message of the first exception with a traceback in `log`, None if there is none.

    vLLM's processes pass a failure on, so that the log ends with "initialization failed": the
    reason stands in the traceback of the process that failed first. Of chained exceptions the
    last is meant.
    """
    lines = [
        (match.group(), line[match.end() :])
        for line in log.splitlines()
        if (match := _PREFIX.match(line))
    ]
    voice = next((prefix for prefix, text in lines if text.startswith(_TRACEBACK)), None)
    if voice is None:
        return None
    said = iter([text for prefix, text in lines if prefix == voice])
    message: list[str] = []
    while any(text.startswith(_TRACEBACK) for text in said):
        frames_skipped = itertools.dropwhile(lambda text: text.startswith(" "), said)
        message = list(itertools.islice(itertools.takewhile(bool, frames_skipped), LOG_TAIL_LINES))
        if not next(said, "").startswith(_CHAINED):
            break
    return "\n".join(message) or None


def free_port(host: str = HOST) -> int:
    """A TCP port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def port_is_free(port: int, host: str = HOST) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def new_log(prefix: str = "ascend-vllm-server-") -> Path:
    """An empty log file in the system's temporary directory; it is kept."""
    handle, name = tempfile.mkstemp(prefix=prefix, suffix=".log")
    os.close(handle)
    return Path(name)


class VllmServer:
    """A `vllm serve MODEL` process on this machine, as a context manager.

    model: checkpoint directory. arguments: further arguments of `vllm serve`.
    served_name: the name clients use. port: 0 takes a free one.
    log: file that receives the server's output (default: a new temporary file, kept).
    environ: variables set over those of this process.
    """

    def __init__(
        self,
        model: Path,
        *,
        arguments: Sequence[str] = (),
        served_name: str = "model",
        host: str = HOST,
        port: int = 0,
        log: Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.model = model
        self.served_name = served_name
        self.host = host
        self.port = port or free_port(host)
        self.log = log or new_log()
        self.command = [
            *serve_command(),
            str(model),
            "--host",
            host,
            "--port",
            str(self.port),
            "--served-model-name",
            served_name,
            *arguments,
        ]
        self._environ = {**os.environ, **(environ or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._detached = False

    @property
    def url(self) -> str:
        """Base address, without a trailing slash and without /v1."""
        return f"http://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """Process id, which is the process group's id as well."""
        if self._process is None:
            raise ServerError("the server was not started")
        return self._process.pid

    def start(self) -> None:
        """Start the process; returns at once."""
        if self._process is not None:
            raise ServerError(f"the server runs already (pid {self._process.pid})")
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environ,
                start_new_session=True,
            )

    def wait_ready(
        self, timeout: float, on_stage: Callable[[str, float], None] | None = None
    ) -> float:
        """Block until /health answers 200; returns the seconds since this call.

        on_stage: called about four times a second with (what happens now, seconds waited).
        Raises ServerError with the log's tail if the process ends or `timeout` seconds pass.
        """
        started = time.monotonic()
        while True:
            waited = time.monotonic() - started
            status = self._require_process().poll()
            if status is not None:
                raise self._failure(f"the server ended with exit status {status} while starting")
            if self._healthy():
                return waited
            if waited > timeout:
                raise self._failure(
                    f"the server was not ready after {timeout:.0f} s (stage: {self.stage()}); "
                    "give it more time, or see the log"
                )
            if on_stage is not None:
                on_stage(self.stage(), waited)
            time.sleep(POLL_S)

    def stage(self) -> str:
        """What the server is doing, read from its log."""
        text = self._log_text()
        found = [(text.rfind(mark), meaning) for mark, meaning in _STAGES if mark in text]
        return max(found)[1] if found else _FIRST_STAGE

    def device(self) -> str | None:
        """The device type that the engine reports in its log ("cpu", "npu"), None if it did not."""
        match = _DEVICE.search(self._log_text())
        return match.group(1) if match else None

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """The last `lines` lines of the log."""
        return "\n".join(deque(self._log_text().splitlines(), maxlen=lines))

    def check_alive(self) -> None:
        """Raise ServerError with the log's tail if the process has ended."""
        status = self._require_process().poll()
        if status is not None:
            raise self._failure(f"the server ended with exit status {status}")

    def speculation_counters(self) -> dict[str, float]:
        """Draft tokens proposed ("drafted") and accepted ("accepted") since the start.

        Read from /metrics; empty when the server does not speculate.
        """
        text = httpx.get(f"{self.url}/metrics", timeout=30, trust_env=False).text
        counters: dict[str, float] = {}
        for key, name in SPECULATION_COUNTERS.items():
            values = re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
            if values:
                counters[key] = sum(map(float, values))
        return counters

    def detach(self) -> None:
        """Leave the server running when the `with` block ends."""
        self._detached = True

    def stop(self, grace: float = 15.0) -> None:
        """End the process and its children: SIGTERM, then SIGKILL after `grace` seconds at most."""
        process = self._process
        if process is None:
            return
        try:
            self._signal(signal.SIGTERM)
            process.wait(grace)
            self._await_children(CHILD_GRACE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # The leader may be gone while a child hangs, or a second Ctrl-C may have cut the wait
            # short: the group gets the last word.
            self._signal(signal.SIGKILL)
            process.wait()
        self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not (self._detached and error is None):
            self.stop()

    def _require_process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerError("the server was not started: call start(), or use it in `with`")
        return self._process

    def _healthy(self) -> bool:
        try:
            return (
                httpx.get(f"{self.url}/health", timeout=5, trust_env=False).status_code
                == httpx.codes.OK
            )
        except httpx.TransportError:
            return False

    def _log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def _failure(self, what: str) -> ServerError:
        parts = [what, f"Log: {self.log}", f"Its last lines:\n{self.log_tail()}"]
        if error := first_error(self._log_text()):
            # Last, because that is what a terminal shows without scrolling.
            parts.append(f"The first error in it:\n{error}")
        return ServerError("\n".join(parts))

    def _await_children(self, seconds: float) -> None:
        """Let what is left of the group clean up after itself (shared memory, sockets)."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(self.pid, 0)
                time.sleep(POLL_S / 5)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
