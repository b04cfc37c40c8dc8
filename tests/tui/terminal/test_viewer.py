import sys
import time

import pytest

from edgechat.base.errors import EditorError
from edgechat.tui.terminal.programs import show_file

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="xdg-open is of desktops on Linux")


def test_a_file_is_given_to_the_desktop(tmp_path, monkeypatch):
    opener = tmp_path / "xdg-open"
    opener.write_text('#!/bin/sh\nprintf "%s" "$1" > "$0.shown"\necho noise\n')
    opener.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("DISPLAY", ":7")
    show_file(tmp_path / "a b.md")
    shown = tmp_path / "xdg-open.shown"
    end = time.monotonic() + 20
    while not (shown.exists() and shown.read_text()) and time.monotonic() < end:
        time.sleep(0.01)
    assert shown.read_text() == str(tmp_path / "a b.md")


def test_without_a_desktop_it_is_said_where_the_file_is(tmp_path, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EditorError) as raised:
        show_file(tmp_path / "a.md")
    assert raised.value.hint == str(tmp_path / "a.md")
