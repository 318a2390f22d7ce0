"""Stands in for `vllm serve` in the tests of the demo: same arguments, same HTTP answers.

FAKE_VLLM (environment) picks the behaviour: "" normal, "crash" ends while starting, "hang" never
gets ready, "stall" streams one piece and then no more, "refuse" answers requests with 400,
"broken" ends the stream without usage. FAKE_VLLM_PIDS is a file that receives the process ids of
the server and of its child, and FAKE_VLLM_ARGS one that receives the arguments.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MODE = os.environ.get("FAKE_VLLM", "")
PIECES = (" there", " was", " a", " fox", ".")
TOKENS_PER_PIECE = 2


class Handler(BaseHTTPRequestHandler):
    drafted = 0

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(200, b"")
            return
        lines = (
            "# TYPE vllm:spec_decode_num_draft_tokens_total counter",
            f'vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {float(Handler.drafted)}',
            f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {Handler.drafted * 0.75}',
            'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 99.0',
        )
        speculating = "--speculative-config" in sys.argv
        self._answer(200, "\n".join(lines if speculating else ()).encode() + b"\n")

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if MODE == "refuse":
            self._answer(400, b'{"error": "the prompt is too long"}')
            return
        Handler.drafted += 8
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for number, piece in enumerate(PIECES):
            last = number == len(PIECES) - 1
            choice = {"index": 0, "text": piece, "finish_reason": "length" if last else None}
            self._event({"choices": [choice], "usage": None})
            time.sleep(600 if MODE == "stall" and request["max_tokens"] > 8 else 0.02)
        if MODE == "broken":
            return
        counts = {"prompt_tokens": 4, "completion_tokens": TOKENS_PER_PIECE * len(PIECES)}
        self._event({"choices": [], "usage": counts})
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *args: object) -> None:
        pass

    def _event(self, body: dict[str, object]) -> None:
        self.wfile.write(b"data: " + json.dumps(body).encode() + b"\n\n")
        self.wfile.flush()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if pids := os.environ.get("FAKE_VLLM_PIDS"):
        Path(pids).write_text(f"{os.getpid()} {child.pid}")
    if arguments := os.environ.get("FAKE_VLLM_ARGS"):
        Path(arguments).write_text(json.dumps(sys.argv[1:]))
    print("Initializing a V1 LLM engine (v0) with config: device_config=cpu, seed=0", flush=True)
    if MODE == "crash":
        sys.exit("ValueError: the fake checkpoint is broken")
    if MODE == "hang":
        print("Starting to load model", flush=True)
        time.sleep(600)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
