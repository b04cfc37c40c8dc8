"""Words that are found in a conversation, and the lines that came while one reads further up."""

import pytest

from edgechat.tui.transcript.finding import Finder
from edgechat.tui.transcript.pieces import NotePiece, ThoughtPiece, UserPiece
from edgechat.tui.transcript.reply_text import ReplyPiece
from tests.fakes import FakeEngine
from tests.tui.driving import app_with, ask, say, text_of, transcript, until

pytestmark = pytest.mark.slow


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "chats.db"


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


async def test_words_are_found_and_gone_through(path):
    filler = "\n\n".join(f"line {n}" for n in range(60))
    engine = FakeEngine([f"Some salt.\n\n{filler}"], [f"{filler}\n\nMore salt."], [filler])
    async with app_with(engine, path).run_test(size=(100, 30), notifications=True) as pilot:
        for question in ("1?", "2?", "3?"):
            await say(pilot, question)
        assert "salt" not in text_of(pilot)
        await pilot.press(*"/find salt", "enter")
        await until(pilot, lambda: "Some salt." in text_of(pilot))
        assert pilot.app.focused is transcript(pilot)
        await pilot.press("n")
        await until(pilot, lambda: "More salt." in text_of(pilot))
        await pilot.press("N")
        await until(pilot, lambda: "Some salt." in text_of(pilot))
        (piece,) = [piece for piece in transcript(pilot).pieces if piece.here is not None]
        assert piece.text.startswith("Some salt.")
        await pilot.press("escape")
        assert not transcript(pilot).is_finding
        await pilot.press(*"/find nowhere", "enter")
        await until(pilot, lambda: "is not in this conversation" in text_of(pilot))


async def test_a_hit_of_the_search_leads_to_its_words(path):
    filler = "\n\n".join(f"line {n}" for n in range(60))
    engine = FakeEngine([f"{filler}\n\nA sourdough.\n\n{filler}"], ["Sugar."])
    async with app_with(engine, path).run_test(size=(120, 30)) as pilot:
        await say(pilot, "1?")
        await say(pilot, "2?")
        await pilot.press("ctrl+n", "ctrl+f", *"sourdough")
        await until(pilot, lambda: "A sourdough" in text_of(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: any(piece.here is not None for piece in transcript(pilot).pieces))
        await until(pilot, lambda: "line 59" in text_of(pilot) and text_of(pilot).count("sourdough") >= 2)
        assert transcript(pilot).is_finding
        await pilot.press("escape")
        await until(pilot, lambda: not transcript(pilot).is_finding)


async def test_lines_that_came_below_are_counted_and_gone_to(path):
    before = "\n\n".join(f"line {n}" for n in range(60))
    engine = FakeEngine([before], ["Begin.", 1.0, "\n\none\n\ntwo\n\nthree", 30.0])
    async with app_with(engine, path).run_test(size=(100, 30)) as pilot:
        await say(pilot, "1?")
        await ask(pilot, "2?")
        await until(pilot, lambda: "Begin." in text_of(pilot))
        await pilot.press("pageup")
        await until(pilot, lambda: "Begin." not in text_of(pilot))
        assert "new line" not in text_of(pilot)
        await until(pilot, lambda: "↓ 6 new lines" in text_of(pilot))
        rows = text_of(pilot).split("\n")
        y = next(y for y, row in enumerate(rows) if "new lines" in row)
        await pilot.click(offset=(rows[y].index("new"), y))
        await until(pilot, lambda: "three" in text_of(pilot) and "new lines" not in text_of(pilot))


async def test_the_end_key_goes_to_the_end(path):
    engine = FakeEngine(["\n\n".join(f"line {n}" for n in range(60))])
    async with app_with(engine, path).run_test(size=(100, 30)) as pilot:
        await say(pilot, "1?")
        await pilot.press("tab", "home")
        await until(pilot, lambda: "1?" in text_of(pilot))
        await pilot.press("end")
        await until(pilot, lambda: "line 59" in text_of(pilot))
        assert transcript(pilot).following
