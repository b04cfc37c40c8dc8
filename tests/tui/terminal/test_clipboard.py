"""The programs that read the image on the clipboard, and what they write."""

import asyncio
import base64

import pytest

from edgechat.tui.terminal.programs import READERS, image_on_clipboard

IMAGE = b"\x89PNG\r\n\x1a\n and more"
WRITTEN = {
    "wl-paste": IMAGE,
    "xclip": IMAGE,
    "pngpaste": IMAGE,
    "osascript": b"\xc2\xabdata PNGf" + IMAGE.hex().upper().encode() + b"\xc2\xbb\n",
    "powershell.exe": base64.b64encode(IMAGE) + b"\r\n",
}
NONE = {"osascript": b"\xc2\xabdata TIFF00\xc2\xbb\n", "powershell.exe": b"\r\n"}


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """The only folder in which programs are found."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("WAYLAND_DISPLAY", "DISPLAY"):
        monkeypatch.setenv(name, "1")
    return tmp_path


def install(folder, name, output, code=0):
    (folder / f"{name}.out").write_bytes(output)
    program = folder / name
    program.write_text(f"#!/bin/sh\n/bin/cat '{program}.out'\nexit {code}\n")
    program.chmod(0o700)


@pytest.mark.parametrize("name", WRITTEN)
async def test_what_each_program_writes(name, programs, monkeypatch):
    assert {reader.command[0] for reader in READERS} == WRITTEN.keys()
    if name in ("pngpaste", "osascript"):
        monkeypatch.setattr("sys.platform", "darwin")
    assert await image_on_clipboard() is None
    install(programs, name, WRITTEN[name])
    assert await image_on_clipboard() == IMAGE
    install(programs, name, WRITTEN[name], code=1)
    assert await image_on_clipboard() is None
    install(programs, name, NONE.get(name, b""))
    assert await image_on_clipboard() is None


async def test_where_one_finds_none_the_next_is_asked(programs, monkeypatch):
    install(programs, "wl-paste", b"", code=1)
    install(programs, "xclip", IMAGE)
    assert await image_on_clipboard() == IMAGE
    monkeypatch.delenv("DISPLAY")  # xclip is here, but no X server
    assert await image_on_clipboard() is None


@pytest.mark.parametrize("how", ["exec", ""])
async def test_a_program_that_writes_without_end_is_ended(how, programs, monkeypatch):
    monkeypatch.setattr("edgechat.tui.terminal.programs._MOST_IMAGE_BYTES", 1 << 20)
    program = programs / "xclip"
    program.write_text(f"#!/bin/sh\n{how} /bin/cat /dev/zero\n")
    program.chmod(0o700)
    assert await asyncio.wait_for(image_on_clipboard(), 30) is None
