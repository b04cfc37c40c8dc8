"""A file in the program with which the system shows such files."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from edgechat.base.errors import EditorError
from edgechat.base.text import one_line
from edgechat.documents.reading.reader import kind_of


def show_file(path: Path) -> None:
    """Show a file, and do not wait for that. Raises EditorError."""
    import subprocess  # 18 ms

    nothing = subprocess.DEVNULL
    try:
        subprocess.Popen(
            _command(path), stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
        )
    except OSError as error:
        why = error.strerror or str(error)
        raise EditorError(f"The file cannot be opened: {why}.", hint=one_line(str(path), 200)) from error


def _command(path: Path) -> list[str]:
    # Code is shown as text: other programs may run it.
    is_code = kind_of(path) in ("code", "notebook")
    if sys.platform == "darwin":
        return ["open", *(["-t"] if is_code else []), str(path)]
    if sys.platform == "win32":
        return ["notepad.exe" if is_code else "explorer.exe", str(path)]
    opener = shutil.which("xdg-open")
    if opener is None or not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise EditorError("There is no desktop to open files here.", hint=one_line(str(path), 200))
    return [opener, str(path)]
