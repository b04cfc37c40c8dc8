"""Images in the app: into the prompt in every way, and in the transcript."""

import asyncio

import msgspec
import pytest
from textual import events

from edgechat.base.images.image import PLACE
from edgechat.tui.chat.prompt.above import Chips
from edgechat.tui.chat.screen import ChatScreen
from edgechat.tui.terminal import key_order
from edgechat.tui.transcript.pieces import UserPiece
from tests.base.images.files import encoded, quadrants
from tests.fakes import MODEL, FakeEngine

pytestmark = pytest.mark.slow

CHIP = "▣ photo.png 64 × 32 ✕"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with images, which is the current one."""
    there = tmp_path / "there"
    there.mkdir()
    (there / "photo.png").write_bytes(encoded(quadrants(), "PNG"))
    (there / "my photo.jpg").write_bytes(encoded(quadrants(40, 40), "JPEG"))
    (there / "damaged.png").write_bytes(encoded(quadrants(), "PNG")[:60])
    monkeypatch.chdir(there)
    return there


def seeing(*scripts):
    engine = FakeEngine(*scripts)
    engine.model = msgspec.structs.replace(MODEL, sees=True)
    return engine


def pane(pilot):
    screen = pilot.app.screen
    assert isinstance(screen, ChatScreen)
    return screen.pane


async def test_an_image_that_is_named_becomes_a_chip_and_is_sent(scene, folder):
    async with scene(seeing()) as pilot:
        await pilot.press(*"What is @ph", see="› photo.png")
        await pilot.press("tab", see=CHIP)
        await pilot.say("?")
        (message,) = pilot.engine.requests[0].messages
        assert message.content == f"{PLACE}What is @photo.png ?"
        assert (message.media[0].width, message.media[0].height) == (64, 32)
        pilot.shows(hidden=CHIP)
    (question, _) = await scene.stored()
    assert [image.name for image in question.images] == ["photo.png"]


async def test_removing_the_chip_of_a_named_image_leaves_its_name(scene, folder):
    async with scene(seeing()) as pilot:
        pane(pilot).box.fill('Not @"my photo.jpg", but `@photo.png`:\n```\n@photo.png\n```\n')
        await pilot.see("▣ my photo.jpg 40 × 40 ✕")
        await pilot.click(Chips, offset=(2, 1))
        await pilot.gone("▣")
        assert pane(pilot).box.text == "Not my photo.jpg, but `@photo.png`:\n```\n@photo.png\n```\n"
        await pilot.say("Why?")
        assert pilot.engine.requests[0].messages[0].media == ()


async def test_a_damaged_image_says_so_at_once_and_is_not_sent(scene, folder):
    async with scene(seeing(), notifications=True) as pilot:
        pane(pilot).box.fill("What is @damaged.png ?")
        await pilot.see("▣ damaged.png", "✕")
        await pilot.press("enter", see="▌ damaged.png")
        assert (pane(pilot).box.text, pilot.engine.requests) == ("What is @damaged.png ?", [])
        pane(pilot).box.fill("/image damaged.png")
        await pilot.press("enter", until=lambda: pilot.text.count("damaged.png") >= 3)
        assert (pane(pilot).box.text, pane(pilot).images) == ("/image damaged.png", [])


async def test_a_dropped_image_becomes_a_chip(scene, folder):
    async with scene(seeing()) as pilot:
        for form in ("{}", "'{}'", '"{}"', "file://{}", "{} "):
            await pilot.press("ctrl+n", gone=CHIP)
            pane(pilot).box.post_message(events.Paste(form.format(folder / "photo.png")))
            await pilot.see(CHIP)
            await pilot.say("What is this?")
            assert pilot.engine.requests[-1].messages[0].content == f"{PLACE}What is this?"


@pytest.mark.parametrize("hold", [2.0, 0.0])
async def test_enter_right_behind_an_image_sends_it(scene, folder, monkeypatch, hold):
    monkeypatch.setattr(key_order, "_HOLD_TIMEOUT", hold)
    async with scene(seeing()) as pilot:
        await pilot.press(*"What is this?")
        pilot.app.post_message(events.Paste(str(folder / "photo.png")))
        pilot.app.post_message(events.Key("enter", "\r"))
        await pilot.until(lambda: pilot.engine.requests != [])
        assert pilot.engine.requests[0].messages[0].content == f"{PLACE}What is this?"
        assert pane(pilot).images == []


async def test_a_dropped_image_whose_name_has_spaces(scene, folder):
    async with scene(seeing()) as pilot:
        uri = f"file://{folder}/my%20photo.jpg"
        escaped = f"{folder}/my\\ photo.jpg"
        for text in (uri, escaped, f"{folder}/my photo.jpg"):
            pane(pilot).box.post_message(events.Paste(text))
            await pilot.see("▣ my photo.jpg 40 × 40 ✕")
            assert len(pane(pilot).images) == 1
            await pilot.press("backspace", gone="▣")


async def test_a_command_attaches_an_image_under_any_name(scene, folder):
    (folder / "photo.png").rename(folder / "scan")
    async with scene(seeing()) as pilot:
        await pilot.press(*"/image sc", see="› scan")
        await pilot.press("enter", see="▣ scan 64 × 32 ✕")


def clipboard(folder, monkeypatch, script):
    """Let a script be the program that reads the clipboard."""
    programs = folder.parent / "programs"
    programs.mkdir()
    program = programs / "wl-paste"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    monkeypatch.delenv("DISPLAY", raising=False)


async def test_the_image_on_the_clipboard_is_attached(scene, folder, monkeypatch):
    clipboard(folder, monkeypatch, f"test \"$4\" = '' && exec cat '{folder / 'photo.png'}'")
    async with scene(seeing()) as pilot:
        pilot.app.copy_to_clipboard("a text")
        await pilot.press("ctrl+v", see="▣ clipboard.png 64 × 32 ✕")
        assert pane(pilot).box.text == ""
        pane(pilot).box.post_message(events.Paste(""))  # of some terminals, for an image
        await pilot.pause()


@pytest.mark.parametrize("script", ["exit 1", "exec sleep 60", "echo no image"])
async def test_without_an_image_there_the_copied_text_is_pasted(scene, folder, monkeypatch, script):
    clipboard(folder, monkeypatch, script)
    monkeypatch.setattr("edgechat.tui.terminal.programs._SECONDS", 0.3)
    async with scene(seeing(), notifications=True) as pilot:
        pilot.app.copy_to_clipboard("a text")
        await pilot.press("ctrl+v", *" it")
        if "echo" in script:
            await pilot.until(lambda: "clipboard.png" in pilot.text and pane(pilot).box.text == " it")
        else:
            await pilot.until(lambda: pane(pilot).box.text == "a text it")
        assert pane(pilot).images == []


async def test_a_question_with_an_image_is_edited_kept_unsent_and_cleared(scene, folder):
    async with scene(seeing(["One."], ["Two."])) as pilot:
        await pane(pilot).attach_file("photo.png")
        await pilot.say("What is this?")
        (folder / "photo.png").unlink()
        await pilot.press("tab", "up", "e", see=CHIP)
        pane(pilot).box.fill("And this, @photo.png ?")
        await pilot.press("enter", see="Two.")
        assert len(pilot.engine.requests[1].messages[0].media) == 1
        await pilot.press("tab", "up", "e", see=CHIP)
        await pilot.press("escape", gone=CHIP)
        await pane(pilot).attach_file("my photo.jpg")
        await asyncio.sleep(1.2)
    async with scene(seeing(), last=True) as pilot:
        await pilot.see("▣ my photo.jpg 40 × 40 ✕")
        await pilot.press("ctrl+c", gone="▣ my photo.jpg 40 × 40 ✕")
        await pilot.press("ctrl+z", see="▣ my photo.jpg 40 × 40 ✕")


# The transcript.


def pictured(pilot):
    return next(piece for piece in pilot.transcript.pieces if isinstance(piece, UserPiece))


def colours(pilot, line):
    """Return the colours of the upper halves of a line's blocks."""
    strip = pilot.app.screen._compositor.render_strips()[line]
    return [
        tuple(segment.style.color.triplet) for segment in strip for letter in segment.text if letter == "▀"
    ]


async def test_the_transcript_shows_the_image(scene, folder):
    async with scene(seeing(), size=(80, 42)) as pilot:
        await pane(pilot).attach_file("photo.png")
        await pilot.say("What is this?", see="▀")
        lines = pilot.text.split("\n")
        name = next(at for at, line in enumerate(lines) if "▌ ▣ photo.png 64 × 32" in line)
        rows = [at for at, line in enumerate(lines) if "▀" in line]
        assert rows == list(range(name + 1, name + 15))  # a third of the screen
        assert "▌ What is this?" in lines[rows[-1] + 1]
        assert lines[rows[0]].count("▀") == 56
        first = colours(pilot, rows[0])
        expected = quadrants().getpixel((0, 0)), quadrants().getpixel((63, 0))
        assert (first[0], first[-1]) == expected
        assert pilot.app.screen.get_selected_text() is None
        await pilot.resize_terminal(40, 24)
        await pilot.until(lambda: 0 < sum("▀" in line for line in pilot.text.split("\n")) <= 8)


async def test_an_image_whose_file_is_gone_is_a_line(scene, path, folder):
    async with scene(seeing(), size=(80, 42)) as pilot:
        await pane(pilot).attach_file("photo.png")
        await pilot.say("What is this?")
    for file in (path.parent / "images").iterdir():
        file.unlink()
    async with scene(seeing(), size=(80, 42), last=True) as pilot:
        await pilot.see("▣ photo.png 64 × 32 is no longer on this machine")
        await pilot.until(lambda: len(pictured(pilot).lay_out(80)) == 2)
