"""Programs that start as copies of one process, which has imported what they need.

An engine in processes of its own imports vLLM in every one of them, which costs a test of a small
model more than all that it computes. Here one process imports it and each program is a fork of it,
as are the processes that the program starts in turn. That nothing but imports has happened before
matters: threads of OpenMP do not survive a fork. How processes come into being is not what such a
test shows; others start theirs as users do.
"""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import os
import runpy
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

_POLL_S = 0.05
_TAIL = 6000


class ForkedPrograms:
    """The process that is copied, as a context manager.

    Args:
        modules: what it imports.
        environ: variables over those of this process, also while it imports.

    Raises:
        AssertionError: an import failed.
    """

    def __init__(self, modules: Sequence[str], **environ: str) -> None:
        self._ended: dict[int, int] = {}
        self._environ = {**os.environ, **environ}
        # As a file: its package imports torch, which not every program needs.
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environ,
        )
        assert self._reply(None) == {"ready": True}

    def start(self, program: Path, arguments: Sequence[str], log: Path, **environ: str) -> int:
        """Start a program and return the number of its process.

        Args:
            program: a file of Python; its folder is the first where it looks for modules.
            arguments: of its command line.
            log: file for its output.
            environ: variables over those that the imports had.
        """
        request = {
            "command": [str(program), *arguments],
            "log": str(log),
            "environ": self._environ | environ,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        while "started" not in (reply := self._reply(None)):
            self._ended[reply["ended"]] = reply["status"]
        return int(reply["started"])

    def wait(self, process: int, timeout_s: float) -> int:
        """Return the exit status of a program that was started.

        Raises:
            AssertionError: it takes longer; it is ended then, with all that it started.
        """
        end = time.monotonic() + timeout_s
        while process not in self._ended:
            reply = self._reply(end)
            if reply is None:
                end_group(process)
                raise AssertionError(f"the program did not end within {timeout_s} s")
            self._ended[reply["ended"]] = reply["status"]
        return self._ended.pop(process)

    def run(
        self, program: Path, arguments: Sequence[str], log: Path, timeout_s: float, **environ: str
    ) -> None:
        """Run a program to its end.

        Raises:
            AssertionError: it failed, or takes too long; the message ends with its output.
        """
        process = self.start(program, arguments, log, **environ)
        status = self.wait(process, timeout_s)
        assert status == 0, f"exit status {status}\n{log.read_text()[-_TAIL:]}"

    def close(self) -> None:
        """End the process, and with it what it has copied."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reply(self, end: float | None) -> Any:
        """One line of the process's; None if none comes in time."""
        stream = self._process.stdout
        assert stream is not None
        if end is not None:
            left = max(0.0, end - time.monotonic())
            if not select.select([stream], [], [], left)[0]:
                return None
        # Byte by byte, so that nothing hides in a buffer from the next select.
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(stream.fileno(), 1)
            assert byte, "the process that programs are copies of has ended"
            line += byte
        return json.loads(line)


def end_group(process: int) -> None:
    """End a program and the processes that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


def _serve(modules: Sequence[str]) -> dict[str, Any] | None:
    """Copy this process for every request; the copy returns with the request."""
    replies = os.dup(1)
    # What the imports print is no reply.
    os.dup2(2, 1)
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    _say(replies, {"ready": True})
    running: set[int] = set()
    pending = b""
    while True:
        if select.select([0], [], [], _POLL_S if running else None)[0]:
            read = os.read(0, 1 << 16)
            if not read:
                for process in running:
                    end_group(process)
                return None
            pending += read
        *lines, pending = pending.split(b"\n")
        for line in lines:
            process = os.fork()
            if process == 0:
                os.close(replies)
                request: dict[str, Any] = json.loads(line)
                return request
            running.add(process)
            _say(replies, {"started": process})
        for process in list(running):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                running.remove(process)
                code = os.waitstatus_to_exitcode(status)
                _say(replies, {"ended": process, "status": code})


def _say(replies: int, what: Mapping[str, Any]) -> None:
    os.write(replies, json.dumps(what).encode() + b"\n")


def _become(request: Mapping[str, Any]) -> None:
    """Be the program that was asked for."""
    os.setsid()
    for target, file, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        opened = os.open(file, flags, 0o644)
        os.dup2(opened, target)
        os.close(opened)
    os.dup2(1, 2)
    os.environ.clear()
    os.environ.update(request["environ"])
    contexts = multiprocessing.get_context

    def forking(method: str | None = None) -> Any:
        return contexts("fork" if method == "spawn" else method)

    multiprocessing.get_context = forking
    sys.argv = list(request["command"])
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    _request = _serve(sys.argv[1:])
    if _request is not None:
        try:
            _become(_request)
        except Exception:
            traceback.print_exc()
            sys.exit(1)
