"""A program that imitates vLLM and the like on the command line: the same protocol, without a model.

    python program.py MANNER [...] --port PORT

Manners: ready, dies (at once), silent (never ready), floods (its log), stubborn (ignores SIGTERM, as does its
child), fails (in the middle of its first answer), obeys (answers what the contract's tests ask for, after
`--delay SECONDS`, or exits with `--error TEXT`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

MANNER, PORT = sys.argv[1], int(sys.argv[sys.argv.index("--port") + 1])
KEY = os.environ.get("VLLM_API_KEY", "")
OPTIONS = {name: value for name, value in pairwise(sys.argv[2:]) if name.startswith("--")}
SCRIPTS = {"slow": (0.05, ["on and on "] * 2000), "die": (0.0, ["I was about to"])}
"""Seconds between the words of an answer, and the words."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {KEY}":
            self._send(401, {"error": {"message": "no key"}})
        elif self.path == "/v1/models":
            self._send(200, {"data": [{"id": "tiny", "owned_by": "vllm", "max_model_len": 512}]})
        else:
            self._send(404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = body["messages"][-1]["content"] if "messages" in body and MANNER == "obeys" else ""
        if self.path == "/tokenize":
            self._send(200, {"tokens": list(body["prompt"].encode())})
        elif self.path == "/detokenize":
            self._send(200, {"prompt": bytes(body["tokens"]).decode()})
        elif len(asked) > 4096:
            error = {"code": "context_length_exceeded", "message": "It is longer than the context."}
            self._send(400, {"error": error})
        else:
            with contextlib.suppress(ConnectionError):
                self._answer(asked)

    def _answer(self, asked: str) -> None:
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        pause, words = SCRIPTS.get(asked, (0.0, ["Hello", "!"] if asked else ["Hello", " there"]))
        for word in words:
            time.sleep(pause)
            piece = {"choices": [{"index": 0, "delta": {"content": word}}]}
            self.wfile.write(f"data: {json.dumps(piece)}\n\n".encode())
            self.wfile.flush()
            if MANNER == "fails" or asked == "die":
                print("out of memory", flush=True)
                os._exit(9)
        last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        self.wfile.write(f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n".encode())

    def _send(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


print("environment:", json.dumps(dict(os.environ)), flush=True)
if MANNER == "dies":
    sys.exit(f"\x1b[31mno such kernel, and the key is {KEY}")
time.sleep(float(OPTIONS.get("--delay", 0)))
if "--error" in OPTIONS:
    sys.exit(OPTIONS["--error"])
if MANNER == "silent":
    time.sleep(600)
if MANNER == "floods":
    for _ in range(6000):
        print("x" * 1023)
    print("the last line", flush=True)
if MANNER == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    helper = subprocess.Popen([sys.executable, "-c", child])
    print("helper", helper.pid, flush=True)
ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
