"""Images in the app: into the prompt in every way, and in the transcript."""

import asyncio

import msgspec
import pytest
from textual import events

from edgechat.base.images.image import PLACE
from edgechat.tui.chat.prompt.chips import Chips
from edgechat.tui.chat.screen import ChatScreen
from edgechat.tui.terminal import key_order
from edgechat.tui.transcript.pieces import UserPiece
from tests.base.images.files import encoded, quadrants
from tests.fakes import MODEL, FakeEngine
from tests.tui.driving import app_with, say, stored_turns, text_of, transcript, until

pytestmark = pytest.mark.slow

CHIP = "▣ photo.png 64 × 32 ✕"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "chats.db"


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


async def test_an_image_that_is_named_becomes_a_chip_and_is_sent(path, folder):
    engine = seeing()
    async with app_with(engine, path).run_test() as pilot:
        await pilot.press(*"What is @ph")
        await until(pilot, lambda: "› photo.png" in text_of(pilot))
        await pilot.press("tab")
        await until(pilot, lambda: CHIP in text_of(pilot))
        await say(pilot, "?")
        (message,) = engine.requests[0].messages
        assert message.content == f"{PLACE}What is @photo.png ?"
        assert (message.media[0].width, message.media[0].height) == (64, 32)
        assert CHIP not in text_of(pilot)
    (question, _) = await stored_turns(path)
    assert [image.name for image in question.images] == ["photo.png"]


async def test_removing_the_chip_of_a_named_image_leaves_its_name(path, folder):
    engine = seeing()
    async with app_with(engine, path).run_test() as pilot:
        pane(pilot).box.fill('Not @"my photo.jpg", but `@photo.png`:\n```\n@photo.png\n```\n')
        await until(pilot, lambda: "▣ my photo.jpg 40 × 40 ✕" in text_of(pilot))
        await pilot.click(Chips, offset=(2, 1))
        await until(pilot, lambda: "▣" not in text_of(pilot))
        assert pane(pilot).text == "Not my photo.jpg, but `@photo.png`:\n```\n@photo.png\n```\n"
        await say(pilot, "Why?")
        assert engine.requests[0].messages[0].media == ()


async def test_a_damaged_image_says_so_at_once_and_is_not_sent(path, folder):
    engine = seeing()
    async with app_with(engine, path).run_test(notifications=True) as pilot:
        pane(pilot).box.fill("What is @damaged.png ?")
        await until(pilot, lambda: "▣ damaged.png" in text_of(pilot) and "✕" in text_of(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: "▌ damaged.png" in text_of(pilot))
        assert (pane(pilot).text, engine.requests) == ("What is @damaged.png ?", [])
        pane(pilot).box.fill("/image damaged.png")
        await pilot.press("enter")
        await until(pilot, lambda: text_of(pilot).count("damaged.png") >= 3)
        assert (pane(pilot).text, pane(pilot).images) == ("/image damaged.png", [])


@pytest.mark.parametrize("form", ["{}", "'{}'", '"{}"', "file://{}", "{} "])
async def test_a_dropped_image_becomes_a_chip(path, folder, form):
    engine = seeing()
    async with app_with(engine, path).run_test() as pilot:
        pane(pilot).box.post_message(events.Paste(form.format(folder / "photo.png")))
        await until(pilot, lambda: CHIP in text_of(pilot))
        await say(pilot, "What is this?")
        assert engine.requests[0].messages[0].content == f"{PLACE}What is this?"


@pytest.mark.parametrize("hold", [2.0, 0.0])
async def test_enter_right_behind_an_image_sends_it(path, folder, monkeypatch, hold):
    monkeypatch.setattr(key_order, "_HOLD_TIMEOUT", hold)
    engine = seeing()
    async with app_with(engine, path).run_test() as pilot:
        await pilot.press(*"What is this?")
        pilot.app.post_message(events.Paste(str(folder / "photo.png")))
        pilot.app.post_message(events.Key("enter", "\r"))
        await until(pilot, lambda: engine.requests != [])
        assert engine.requests[0].messages[0].content == f"{PLACE}What is this?"
        assert pane(pilot).images == []


async def test_a_dropped_image_whose_name_has_spaces(path, folder):
    async with app_with(seeing(), path).run_test() as pilot:
        uri = f"file://{folder}/my%20photo.jpg"
        escaped = f"{folder}/my\\ photo.jpg"
        for text in (uri, escaped, f"{folder}/my photo.jpg"):
            pane(pilot).box.post_message(events.Paste(text))
            await until(pilot, lambda: "▣ my photo.jpg 40 × 40 ✕" in text_of(pilot))
            assert len(pane(pilot).images) == 1
            await pilot.press("backspace")
            await until(pilot, lambda: "▣" not in text_of(pilot))


async def test_a_command_attaches_an_image_under_any_name(path, folder):
    (folder / "photo.png").rename(folder / "scan")
    async with app_with(seeing(), path).run_test() as pilot:
        await pilot.press(*"/image sc")
        await until(pilot, lambda: "› scan" in text_of(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: "▣ scan 64 × 32 ✕" in text_of(pilot))


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


async def test_the_image_on_the_clipboard_is_attached(path, folder, monkeypatch):
    clipboard(folder, monkeypatch, f"test \"$4\" = '' && exec cat '{folder / 'photo.png'}'")
    async with app_with(seeing(), path).run_test() as pilot:
        pilot.app.copy_to_clipboard("a text")
        await pilot.press("ctrl+v")
        await until(pilot, lambda: "▣ clipboard.png 64 × 32 ✕" in text_of(pilot))
        assert pane(pilot).text == ""
        pane(pilot).box.post_message(events.Paste(""))  # of some terminals, for an image
        await pilot.pause()


@pytest.mark.parametrize("script", ["exit 1", "exec sleep 60", "echo no image"])
async def test_without_an_image_there_the_copied_text_is_pasted(path, folder, monkeypatch, script):
    clipboard(folder, monkeypatch, script)
    monkeypatch.setattr("edgechat.tui.terminal.clipboard._SECONDS", 0.3)
    async with app_with(seeing(), path).run_test(notifications=True) as pilot:
        pilot.app.copy_to_clipboard("a text")
        await pilot.press("ctrl+v", *" it")
        if "echo" in script:
            await until(pilot, lambda: "clipboard.png" in text_of(pilot) and pane(pilot).text == " it")
        else:
            await until(pilot, lambda: pane(pilot).text == "a text it")
        assert pane(pilot).images == []


async def test_a_question_with_an_image_is_edited_kept_unsent_and_cleared(path, folder):
    engine = seeing(["One."], ["Two."])
    async with app_with(engine, path).run_test() as pilot:
        await pane(pilot).attach_file("photo.png")
        await say(pilot, "What is this?")
        (folder / "photo.png").unlink()
        await pilot.press("tab", "up", "e")
        await until(pilot, lambda: CHIP in text_of(pilot))
        pane(pilot).box.fill("And this, @photo.png ?")
        await pilot.press("enter")
        await until(pilot, lambda: "Two." in text_of(pilot))
        assert len(engine.requests[1].messages[0].media) == 1
        await pilot.press("tab", "up", "e")
        await until(pilot, lambda: CHIP in text_of(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: CHIP not in text_of(pilot))
        await pane(pilot).attach_file("my photo.jpg")
        await asyncio.sleep(1.2)
    async with app_with(seeing(), path, last=True).run_test() as pilot:
        await until(pilot, lambda: "▣ my photo.jpg 40 × 40 ✕" in text_of(pilot))
        await pilot.press("ctrl+c")
        await until(pilot, lambda: "▣ my photo.jpg 40 × 40 ✕" not in text_of(pilot))
        await pilot.press("ctrl+z")
        await until(pilot, lambda: "▣ my photo.jpg 40 × 40 ✕" in text_of(pilot))


# The transcript.


def pictured(pilot):
    return next(piece for piece in transcript(pilot).pieces if isinstance(piece, UserPiece))


def colours(pilot, line):
    """Return the colours of the upper halves of a line's blocks."""
    strip = pilot.app.screen._compositor.render_strips()[line]
    return [
        tuple(segment.style.color.triplet) for segment in strip for letter in segment.text if letter == "▀"
    ]


async def test_the_transcript_shows_the_image(path, folder):
    async with app_with(seeing(), path).run_test(size=(80, 42)) as pilot:
        await pane(pilot).attach_file("photo.png")
        await say(pilot, "What is this?")
        await until(pilot, lambda: "▀" in text_of(pilot))
        lines = text_of(pilot).split("\n")
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
        await until(pilot, lambda: 0 < sum("▀" in line for line in text_of(pilot).split("\n")) <= 8)


async def test_an_image_whose_file_is_gone_is_a_line(path, folder):
    async with app_with(seeing(), path).run_test(size=(80, 42)) as pilot:
        await pane(pilot).attach_file("photo.png")
        await say(pilot, "What is this?")
    for file in (path.parent / "images").iterdir():
        file.unlink()
    async with app_with(seeing(), path, last=True).run_test(size=(80, 42)) as pilot:
        await until(pilot, lambda: "▣ photo.png 64 × 32 is not on this machine any more" in text_of(pilot))
        await until(pilot, lambda: len(pictured(pilot).lay_out(80)) == 2)
