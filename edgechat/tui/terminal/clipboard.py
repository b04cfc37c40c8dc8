"""The image on the system's clipboard, which terminals do not pass on: the system's programs read it."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

_SECONDS = 3.0
_MOST_BYTES = 130 * 2**20
"""Of what a program writes: the largest image, in hexadecimal digits."""
_POWERSHELL = (
    "Add-Type -AssemblyName System.Windows.Forms, System.Drawing; "
    "$image = [System.Windows.Forms.Clipboard]::GetImage(); if ($image) { "
    "$bytes = New-Object System.IO.MemoryStream; "
    "$image.Save($bytes, [System.Drawing.Imaging.ImageFormat]::Png); "
    "[Convert]::ToBase64String($bytes.ToArray()) }"
)


@dataclass(frozen=True, slots=True)
class ClipboardReader:
    """A program that writes the clipboard's image to its output."""

    command: tuple[str, ...]
    decode: Callable[[bytes], bytes] = bytes
    """From the output to the file of the image."""


def _from_applescript(output: bytes) -> bytes:
    match = re.search(rb"PNGf([0-9A-Fa-f]+)", output)
    return binascii.unhexlify(match[1]) if match else b""


READERS = (
    ClipboardReader(("wl-paste", "--no-newline", "--type", "image/png")),
    ClipboardReader(("xclip", "-selection", "clipboard", "-target", "image/png", "-out")),
    ClipboardReader(("pngpaste", "-")),
    ClipboardReader(("osascript", "-e", "get the clipboard as «class PNGf»"), _from_applescript),
    ClipboardReader(
        ("powershell.exe", "-NoProfile", "-NonInteractive", "-STA", "-Command", _POWERSHELL), base64.b64decode
    ),
)


async def image_on_clipboard() -> bytes | None:
    """Return the image on the clipboard, as a PNG file; None if there is none, or no program to read it."""
    for reader in _usable():
        output = await asyncio.to_thread(_output_of, reader.command)
        with suppress(ValueError):
            if output and (data := reader.decode(output)):
                return data
    return None


def _usable() -> list[ClipboardReader]:
    """Return the readers that are installed and fit the session, the best first."""
    needs = {"wl-paste": "WAYLAND_DISPLAY", "xclip": "DISPLAY"}
    return [
        reader
        for reader in READERS
        if os.environ.get(needs.get(reader.command[0], "PATH"))
        and (reader.command[0] not in ("pngpaste", "osascript") or sys.platform == "darwin")
        and shutil.which(reader.command[0])
    ]


def _output_of(command: tuple[str, ...]) -> bytes:
    """Return what a program writes, b\"\" if it fails or takes too long."""
    null = subprocess.DEVNULL
    try:
        # In a session of its own, so that the children of a shell script end with it.
        process = subprocess.Popen(
            command, stdin=null, stdout=subprocess.PIPE, stderr=null, start_new_session=True
        )
    except OSError:
        return b""
    assert process.stdout is not None
    timer = threading.Timer(_SECONDS, _kill, (process,))
    timer.start()
    with process:
        output = process.stdout.read(_MOST_BYTES + 1)
        timer.cancel()
        if len(output) > _MOST_BYTES:
            _kill(process)
    return output if process.returncode == 0 else b""


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
