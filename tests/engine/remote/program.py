"""A program as vLLM and its like are, for the command line of a test: no model, the same protocol.

    python program.py MANNER [...] --port PORT

Manners: ready, dies (at once), silent (never ready), floods (its log), stubborn (ignores SIGTERM, and has a
child that does), fails (in the middle of its first answer).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MANNER, PORT = sys.argv[1], int(sys.argv[sys.argv.index("--port") + 1])
KEY = os.environ.get("VLLM_API_KEY", "")


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
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        for word in ("Hello", " there"):
            piece = {"choices": [{"index": 0, "delta": {"content": word}}]}
            self.wfile.write(f"data: {json.dumps(piece)}\n\n".encode())
            self.wfile.flush()
            if MANNER == "fails":
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
