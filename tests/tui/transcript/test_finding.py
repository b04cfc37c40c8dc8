"""Words that are found in a conversation, and the lines that came while one reads further up."""

import asyncio

import pytest

from edgechat.tui.transcript.pieces import Finder, NotePiece, ThoughtPiece, UserPiece
from edgechat.tui.transcript.turns import ReplyPiece

pytestmark = pytest.mark.slow


def test_matches_follow_each_other_line_by_line_and_around_the_end():
    pieces = [
        UserPiece("bread?"),
        ThoughtPiece("bread"),  # folded
        ReplyPiece("No.\n\n**Bread** and bread.\n\nBreadth [x](http://bread)."),
        NotePiece("bread"),
        UserPiece("cake"),
    ]
    finder = Finder("bread")
    places, at = [], (0, -1)
    for _ in range(4):
        found = finder.step(pieces, at, 1, 60)
        assert found is not None
        places.append(at := found)
    assert places == [(0, 0), (2, 2), (2, 4), (0, 0)]
    assert finder.step(pieces, (2, 2), -1, 60) == (0, 0)
    assert finder.step(pieces, (0, 0), -1, 60) == (2, 4)
    assert Finder("nowhere").step(pieces, (0, -1), 1, 60) is None
    assert Finder("?").step(pieces, (0, -1), 1, 60) is None


async def test_words_are_found_and_gone_through(scene):
    filler = "\n\n".join(f"line {n}" for n in range(60))
    async with scene(
        [f"Some salt.\n\n{filler}"], [f"{filler}\n\nMore salt."], [filler], size=(100, 30), notifications=True
    ) as pilot:
        for question in ("1?", "2?", "3?"):
            await pilot.say(question)
        pilot.shows(hidden="salt")
        await pilot.press(*"/find salt", "enter", see="Some salt.")
        assert pilot.app.focused is pilot.transcript
        await pilot.press("n", see="More salt.")
        await pilot.press("N", see="Some salt.")
        (piece,) = [piece for piece in pilot.transcript.pieces if piece.here is not None]
        assert piece.text.startswith("Some salt.")
        await pilot.press("escape")
        assert not pilot.transcript.is_finding
        await pilot.press(*"/find nowhere", "enter", see="is not in this conversation")


async def test_a_hit_of_the_search_leads_to_its_words(scene):
    filler = "\n\n".join(f"line {n}" for n in range(60))
    async with scene([f"{filler}\n\nA sourdough.\n\n{filler}"], ["Sugar."], size=(120, 30)) as pilot:
        await pilot.say("1?")
        await pilot.say("2?")
        await pilot.press("ctrl+n", "ctrl+f", *"sourdough", see="A sourdough")
        await pilot.press("enter")
        await pilot.until(lambda: any(piece.here is not None for piece in pilot.transcript.pieces))
        await pilot.until(lambda: "line 59" in pilot.text and pilot.text.count("sourdough") >= 2)
        assert pilot.transcript.is_finding
        await pilot.press("escape", until=lambda: not pilot.transcript.is_finding)


async def test_lines_that_came_below_are_counted_and_gone_to(scene):
    before, scrolled = "\n\n".join(f"line {n}" for n in range(60)), asyncio.Event()
    async with scene(
        [before], ["Begin.", scrolled, "\n\none\n\ntwo\n\nthree", 30.0], size=(100, 30)
    ) as pilot:
        await pilot.say("1?")
        await pilot.ask("2?", see="Begin.")
        await pilot.press("pageup", gone="Begin.", hidden="new line")
        scrolled.set()
        await pilot.see("↓ 6 new lines")
        rows = pilot.text.split("\n")
        y = next(y for y, row in enumerate(rows) if "new lines" in row)
        await pilot.click(offset=(rows[y].index("new"), y))
        await pilot.see("three", gone="new lines")


async def test_the_end_key_goes_to_the_end(scene):
    async with scene(["\n\n".join(f"line {n}" for n in range(60))], size=(100, 30), say="1?") as pilot:
        await pilot.press("tab", "home", see="1?")
        await pilot.press("end", see="line 59")
        assert pilot.transcript.following
