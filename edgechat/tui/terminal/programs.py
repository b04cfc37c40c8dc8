"""Other programs: the user's editor, clipboard image readers, and file viewers."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from textual.app import App, SuspendNotSupported

from edgechat.base.errors import EditorError
from edgechat.base.text import one_line, printable
from edgechat.documents.reading.reader import kind_of

_MOST_BYTES = 4 * 2**20
_KEPT = "The prompt is unchanged."


async def edit(app: App[None], text: str) -> str:
    """Open text in $VISUAL or $EDITOR with the app suspended, and return the result. Raises EditorError.

    Replies continue in the meantime, but the screen is not drawn.
    """
    command = _command()
    folder = Path(tempfile.mkdtemp(prefix="edgechat-"))  # accessible only to the user
    file, is_kept = folder / "prompt.md", False
    try:
        with open(
            os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as stream:
            stream.write(text)
        before = _version(file)
        try:
            await _run(app, [*command, str(file)])
            edited = _read(file)
        except EditorError as error:
            is_kept = _version(file) not in (before, None)
            if is_kept:
                error.hint = f"{_KEPT} What the editor saved: {file}"
            raise
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)
    return edited if text.endswith("\n") else edited.removesuffix("\n")  # editors add a final newline


def _command() -> list[str]:
    value = os.environ.get("VISUAL") or os.environ.get("EDITOR") or ""
    try:
        command = shlex.split(value)
    except ValueError as error:
        raise EditorError(f"The editor command cannot be parsed: {one_line(value, 80)!r}.") from error
    if not command:
        raise EditorError(
            "No editor is set.", hint="Set the variable EDITOR before starting edgechat: export EDITOR=nano"
        )
    return command


async def _run(app: App[None], command: list[str]) -> None:
    """Suspend the app, run the editor, and wait for it. Raises EditorError."""
    name = one_line(command[0], 80)
    code, failure = 0, None
    try:
        with _interrupts_ignored(), app.suspend(), app.batch_update():
            try:
                process = subprocess.Popen(command)
                try:
                    code = await asyncio.to_thread(process.wait)
                finally:
                    process.terminate()  # if the app ends first
            except (OSError, ValueError) as error:  # raised here, it would leave the app suspended
                failure = error
    except SuspendNotSupported as error:
        raise EditorError("An editor cannot be opened in this terminal.", hint=_KEPT) from error
    if failure is not None:
        why = getattr(failure, "strerror", None) or failure
        raise EditorError(
            f"The editor {name} cannot be started: {why}.", hint="It is set by VISUAL or EDITOR."
        ) from failure
    if code:
        raise EditorError(f"The editor {name} has ended with an error ({code}).", hint=_KEPT)


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Leave Ctrl+C to the editor: both processes receive it until the editor takes over the terminal."""
    previous = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _version(file: Path) -> tuple[int, ...] | None:
    """Return a value that changes when a file is rewritten, or None if the file does not exist."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise EditorError(
            f"The edited text cannot be read: {error.strerror or error}.", hint=_KEPT
        ) from error
    if len(data) > _MOST_BYTES:
        limit = f"{_MOST_BYTES // 2**20} MiB"
        raise EditorError(f"The edited text is larger than {limit}, the limit.", hint=_KEPT)
    return printable(data.decode("utf-8", "replace").replace("\r\n", "\n"))


_SECONDS = 3.0
_MOST_IMAGE_BYTES = 130 * 2**20
"""Maximum output in bytes: the largest image, in hexadecimal digits."""
_POWERSHELL = (
    "Add-Type -AssemblyName System.Windows.Forms, System.Drawing; "
    "$image = [System.Windows.Forms.Clipboard]::GetImage(); if ($image) { "
    "$bytes = New-Object System.IO.MemoryStream; "
    "$image.Save($bytes, [System.Drawing.Imaging.ImageFormat]::Png); "
    "[Convert]::ToBase64String($bytes.ToArray()) }"
)


@dataclass(frozen=True, slots=True)
class ClipboardReader:
    """A program that prints the clipboard's image."""

    command: tuple[str, ...]
    decode: Callable[[bytes], bytes] = bytes
    """Decodes the program's output into an image file."""


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
    """Return the image on the clipboard as PNG, or None if there is none or it cannot be read."""
    for reader in _usable():
        output = await asyncio.to_thread(_output_of, reader.command)
        with suppress(ValueError):
            if output and (data := reader.decode(output)):
                return data
    return None


def _usable() -> list[ClipboardReader]:
    """Return the installed readers that suit the session, best first."""
    needs = {"wl-paste": "WAYLAND_DISPLAY", "xclip": "DISPLAY"}
    return [
        reader
        for reader in READERS
        if os.environ.get(needs.get(reader.command[0], "PATH"))
        and (reader.command[0] not in ("pngpaste", "osascript") or sys.platform == "darwin")
        and shutil.which(reader.command[0])
    ]


def _output_of(command: tuple[str, ...]) -> bytes:
    """Return a program's output, or b"" if it fails or takes too long."""
    null = subprocess.DEVNULL
    try:
        # In its own session, so that the children of a shell script are killed with it.
        process = subprocess.Popen(
            command, stdin=null, stdout=subprocess.PIPE, stderr=null, start_new_session=True
        )
    except OSError:
        return b""
    assert process.stdout is not None
    timer = threading.Timer(_SECONDS, _kill, (process,))
    timer.start()
    with process:
        output = process.stdout.read(_MOST_IMAGE_BYTES + 1)
        timer.cancel()
        if len(output) > _MOST_IMAGE_BYTES:
            _kill(process)
    return output if process.returncode == 0 else b""


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)


def show_file(path: Path) -> None:
    """Open a file in the desktop's default program without waiting for it. Raises EditorError."""
    nothing = subprocess.DEVNULL
    try:
        subprocess.Popen(_viewer(path), stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
    except OSError as error:
        why = error.strerror or str(error)
        raise EditorError(f"The file cannot be opened: {why}.", hint=one_line(str(path), 200)) from error


def _viewer(path: Path) -> list[str]:
    # Code is opened as text, because other programs might run it.
    is_code = kind_of(path) in ("code", "notebook")
    if sys.platform == "darwin":
        return ["open", *(["-t"] if is_code else []), str(path)]
    if sys.platform == "win32":
        return ["notepad.exe" if is_code else "explorer.exe", str(path)]
    opener = shutil.which("xdg-open")
    if opener is None or not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise EditorError("There is no desktop to open files here.", hint=one_line(str(path), 200))
    return [opener, str(path)]
