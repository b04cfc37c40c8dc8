"""Speed of downloads with SHA-256 verification, compared with huggingface_hub's own, which skip it.

    python -m benchmarks.pull [--size 1024] [--rounds 5] [--folder /dev/shm]

The hub is a separate process on loopback that sends the file with sendfile(). The two sides take turns, each
in a new process and with an empty cache. Only the download is timed, up to the final renaming of the file;
pending writes are flushed to disk between rounds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

REPO, FILE, COMMIT = "owner/big-GGUF", "big-Q4_0.gguf", "c" * 40


class Handler(BaseHTTPRequestHandler):
    """Serves the hub's API, its URL for the file, and, after a redirect, the file itself."""

    protocol_version = "HTTP/1.1"
    file: Path
    sha256: str
    store: int
    """Port of the host that stores the file."""

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        """Send headers only."""
        self.do_GET()

    def do_GET(self) -> None:
        """Send JSON, a redirect or the file."""
        size = self.file.stat().st_size
        if self.path.startswith("/api/models/"):
            lfs = {"sha256": self.sha256, "size": size}
            listed = [{"rfilename": FILE, "size": size, "lfs": lfs}]
            body = json.dumps({"id": REPO, "sha": COMMIT, "siblings": listed}).encode()
            self.answer(200, {"Content-Length": str(len(body))})
            self.wfile.write(body)
        elif "/resolve/" in self.path:
            store = f"http://127.0.0.1:{self.store}/store"
            headers = {"X-Repo-Commit": COMMIT, "X-Linked-Etag": f'"{self.sha256}"', "Location": store}
            self.answer(302, {**headers, "X-Linked-Size": str(size), "Content-Length": "0"})
        else:
            self.answer(200, {"Content-Length": str(size), "ETag": f'"{self.sha256}"'})
            if self.command == "GET":
                with self.file.open("rb") as file:
                    self.connection.sendfile(file)

    def answer(self, status: int, headers: dict[str, str]) -> None:
        """Send a status and headers."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def serve(file: Path) -> None:
    with file.open("rb") as data:
        Handler.sha256 = hashlib.file_digest(data, "sha256").hexdigest()
    Handler.file = file
    server, store = (ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2))
    Handler.store = store.server_address[1]
    threading.Thread(target=store.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    server.serve_forever()


def ours() -> float:
    from edgechat.models.choices import RemoteFile
    from edgechat.models.hub.download import download
    from edgechat.models.hub.listing import list_repo

    class Silent:
        def has(self, file: RemoteFile, n: int) -> None:
            """Do nothing."""

        checked = has

        def says(self, text: str) -> None:
            """Print a message; none is expected."""
            print(text, file=sys.stderr)

    import huggingface_hub  # noqa: F401  (provides the token)

    began = time.perf_counter()
    listing = list_repo(REPO, None)
    download(listing, listing.files, "main", Silent())
    return time.perf_counter() - began


def theirs() -> float:
    from huggingface_hub import hf_hub_download

    began = time.perf_counter()
    hf_hub_download(REPO, FILE, token=False)
    return time.perf_counter() - began


def run(side: str, folder: Path, port: str) -> float:
    """Return how long a download takes in a new process, in seconds."""
    cache = folder / "cache"
    variables = {
        "HF_ENDPOINT": f"http://127.0.0.1:{port}",
        "HF_HOME": str(cache),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "EDGECHAT_HOME": str(folder / "home"),
        "NO_PROXY": "*",
    }
    command = [sys.executable, "-m", "benchmarks.pull", "--once", side]
    done = subprocess.run(
        command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True, check=True
    )
    shutil.rmtree(cache)
    os.sync()
    return float(done.stdout)


def compare(folder: Path, size: int, rounds: int) -> None:
    file = folder / FILE
    with file.open("wb") as out:
        for _ in range(size):
            out.write(os.urandom(1 << 20))
    command = [sys.executable, "-m", "benchmarks.pull", "--serve", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
        try:
            for number in range(rounds):
                for side in ("ours", "theirs") if number % 2 else ("theirs", "ours"):
                    seconds[side].append(run(side, folder, port))
        finally:
            server.kill()
    for side, found in seconds.items():
        rates = ", ".join(f"{size / one:.0f}" for one in found)
        print(f"{side}: median {statistics.median(found):.2f} s; MiB/s by round: {rates}")
    pairs = [b / a for a, b in zip(seconds["ours"], seconds["theirs"], strict=True)]
    ratio = statistics.median(seconds["theirs"]) / statistics.median(seconds["ours"])
    print(f"our speed, of theirs: {ratio:.3f} by medians, {statistics.median(pairs):.3f} median of the pairs")
    print(f"pairs: {', '.join(f'{one:.2f}' for one in pairs)}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=1024, help="MiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where the caches are; by default the folder of temporary files")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--once", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
    elif options.once:
        print(ours() if options.once == "ours" else theirs())
    else:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            compare(Path(folder), options.size, options.rounds)


if __name__ == "__main__":
    main()
