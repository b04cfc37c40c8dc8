"""A text in the user's own editor, $VISUAL or $EDITOR, while the app is suspended."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from textual.app import App, SuspendNotSupported

from edgechat.base.errors import EditorError
from edgechat.base.text import one_line, printable

_MOST_BYTES = 4 * 2**20
_KEPT = "The prompt is as it was."


async def edit(app: App[None], text: str) -> str:
    """Return a text as the user has changed it. Raises EditorError.

    Replies go on meanwhile: only the screen is not drawn.
    """
    command = _command()
    folder = Path(tempfile.mkdtemp(prefix="edgechat-"))  # only the user may enter it
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
    return edited if text.endswith("\n") else edited.removesuffix("\n")  # which editors add


def _command() -> list[str]:
    value = os.environ.get("VISUAL") or os.environ.get("EDITOR") or ""
    try:
        command = shlex.split(value)
    except ValueError as error:
        raise EditorError(f"The name of the editor cannot be read: {one_line(value, 80)!r}.") from error
    if not command:
        raise EditorError(
            "No editor is set.", hint="Set the variable EDITOR before starting edgechat: export EDITOR=nano"
        )
    return command


async def _run(app: App[None], command: list[str]) -> None:
    """Run the editor in the app's place, and wait for it. Raises EditorError."""
    import subprocess  # 18 ms

    name = one_line(command[0], 80)
    code, failure = 0, None
    try:
        with _interrupts_ignored(), app.suspend(), app.batch_update():
            try:
                process = subprocess.Popen(command)
                try:
                    code = await asyncio.to_thread(process.wait)
                finally:
                    process.terminate()  # if the app is ended meanwhile
            except (OSError, ValueError) as error:  # which would keep the app suspended
                failure = error
    except SuspendNotSupported as error:
        raise EditorError("An editor cannot be opened in this terminal.", hint=_KEPT) from error
    if failure is not None:
        why = getattr(failure, "strerror", None) or failure
        raise EditorError(
            f"The editor {name} cannot be started: {why}.", hint="It is named by VISUAL or EDITOR."
        ) from failure
    if code:
        raise EditorError(f"The editor {name} has ended with an error ({code}).", hint=_KEPT)


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Leave Ctrl+C to the editor: until that is in charge of the terminal, it is sent to both."""
    previous = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _version(file: Path) -> tuple[int, ...] | None:
    """Return what differs once a file has been written again; None if there is none."""
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
        raise EditorError(f"The edited text has more than {limit}, the limit.", hint=_KEPT)
    return printable(data.decode("utf-8", "replace").replace("\r\n", "\n"))
