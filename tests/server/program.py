"""Runs `edgechat serve` as a program."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests import scripted

COMMAND = [*scripted.COMMAND, "serve"]


@dataclass
class Served:
    """A running server."""

    process: subprocess.Popen[str]
    screen: str
    """Its initial output."""
    url: str
    key: str

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Send a request; return the status and the JSON, or the text if it is not JSON."""
        sent = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json", **headers}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, sent)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        try:
            return status, json.loads(text)
        except json.JSONDecodeError:
            return status, text

    def workers(self) -> list[psutil.Process]:
        """Return the processes of its workers."""
        found = []
        for one in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                if "engine" in one.cmdline():
                    found.append(one)
        return found

    def wait(self, status: str, seconds: float = 30.0) -> None:
        """Wait until it reports this status."""
        end = time.monotonic() + seconds
        while (said := self.ask("/health")[1]["status"]) != status:
            assert time.monotonic() < end, said
            time.sleep(0.02)

    def figure(self, name: str) -> float:
        """Return a figure from /metrics, summed over all labels."""
        text = self.ask("/metrics")[1]
        found = re.findall(rf"^edgechat_{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Stop it with a signal; return the exit code and stderr."""
        self.process.send_signal(number)
        _, complaint = self.process.communicate(timeout=20)
        return self.process.returncode, complaint


def start(model: Path | str, *words: str, home: Path, **env: str) -> Served:
    """Start a server on a free port; return it once it has printed its first screen."""
    environment = {**os.environ, "EDGECHAT_HOME": str(home), **env}
    process = subprocess.Popen(
        [*COMMAND, str(model), "--port", "0", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env=environment,
        text=True,
    )
    assert process.stdout is not None
    screen = ""
    while not ("To try it:" in screen and screen.endswith("\n\n")):
        line = process.stdout.readline()
        if not line:
            raise AssertionError(process.communicate()[1])
        screen += line
    url = re.search(r"http://\S+?(?=/v1)", screen)
    assert url is not None
    kept = home / "config" / "api-key"
    found = env.get("EDGECHAT_API_KEY") or (kept.read_text().strip() if kept.exists() else "none")
    return Served(process, screen, url[0], found)


@contextmanager
def served(model: Path | str, *words: str, home: Path, **env: str) -> Iterator[Served]:
    """Run a server; yield it once its model is loaded, and stop it on exit."""
    server = start(model, *words, home=home, **env)
    try:
        server.wait("ready")
        yield server
    finally:
        ended = server.process.poll()
        if ended is None:
            server.process.kill()
        _, complaint = server.process.communicate()
        assert ended in (None, 0), complaint
        assert "Traceback" not in complaint, complaint
