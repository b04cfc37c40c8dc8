"""A real sshd on loopback, with throwaway keys, whose workers have their own home.

    with Sshd(folder) as sshd:
        sshd.worker("large", memory=64 * MIB)   # "ssh://127.0.0.1:PORT/.../large"

A program named `ssh` on PATH runs the real one with a configuration that contains the key.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

_SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
_SEPARATION = Path("/run/sshd")
"""Folder without which an sshd run by root does not start."""
_CONFIG = """\
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
AllowTcpForwarding yes
MaxStartups 100
LogLevel ERROR
"""
_CLIENT = """\
IdentityFile {folder}/user
IdentitiesOnly yes
UserKnownHostsFile {folder}/known
StrictHostKeyChecking accept-new
LogLevel ERROR
"""


def skip_without_sshd() -> None:
    """Skip the test if no sshd can be run."""
    if not (Path(_SSHD).exists() and shutil.which("ssh") and shutil.which("ssh-keygen")):
        pytest.skip("needs OpenSSH's server, client and ssh-keygen (Debian: openssh-server)")
    if os.geteuid() == 0 and not _SEPARATION.exists():
        _SEPARATION.mkdir(mode=0o755)


class Sshd:
    """The server, and the workers that it can start."""

    def __init__(self, folder: Path) -> None:
        skip_without_sshd()
        self.folder = folder
        for name in ("host", "user"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        (folder / "config").write_text(_CONFIG.format(port=self.port, folder=folder))
        (folder / "client").write_text(_CLIENT.format(folder=folder))
        self.programs = folder / "bin"
        self.programs.mkdir()
        real = shutil.which("ssh")
        self._script(self.programs / "ssh", f'exec {real} -F {folder}/client "$@"')
        self._process = subprocess.Popen([_SSHD, "-D", "-e", "-f", str(folder / "config")])

    def home(self, name: str) -> Path:
        """Return the folder for a worker's own files."""
        folder = self.folder / f"home-{name}"
        folder.mkdir(exist_ok=True)
        return folder

    def worker(self, name: str, *, memory: int | None = None, port: int | None = None) -> str:
        """Return the address of a worker with that much memory. port: of a proxy in front of sshd."""
        lent = "" if memory is None else f" --memory {memory // 2**20}MiB"
        program = self.folder / name
        python = f"{sys.executable} -P -m edgechat"
        self._script(program, f'EDGECHAT_HOME={self.home(name)} exec {python} "$@"{lent}')
        return f"ssh://127.0.0.1:{port or self.port}{program}"

    @staticmethod
    def _script(path: Path, line: str) -> None:
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)

    def workers(self, name: str = "") -> list[psutil.Process]:
        """Return the processes of its workers, or of one by name, even if sshd has lost track of them."""
        home = f"{self.folder}/home-{name}"
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                lent = process.environ().get("EDGECHAT_HOME", "").startswith(home)
                if lent and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _children(self) -> list[psutil.Process]:
        found = []
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and process.cmdline():
                    found.append(process)
        return found

    def cut(self) -> None:
        """Break all connections, like a firewall that resets them."""
        for process in self._children():
            if "sshd" in process.name():
                process.send_signal(signal.SIGKILL)

    def wait(self) -> None:
        """Wait until it accepts connections."""
        deadline = time.monotonic() + 20
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=5):
                    return
            except ConnectionRefusedError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.02)

    def __enter__(self) -> Sshd:
        self.wait()
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self.workers(), *self._children(), psutil.Process(self._process.pid)]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._process.wait()
