import statistics
import time

import pytest
from textual.app import App

from edgechat.tui.transcript.pieces import NotePiece, ThoughtPiece, UserPiece
from edgechat.tui.transcript.sheet import Sheet
from edgechat.tui.transcript.transcript import Transcript, UnreadLines
from edgechat.tui.transcript.turns import ReplyPiece

pytestmark = pytest.mark.slow

HEIGHT = 30


class TranscriptApp(App[None]):
    def compose(self):
        yield Transcript()

    def on_mount(self):
        self.animation_level = "none"


@pytest.fixture
async def pilot():
    async with TranscriptApp().run_test(size=(80, HEIGHT)) as running:
        yield running


def pane(pilot):
    return pilot.app.query_one(Transcript)


def shown(pilot):
    return [strip.text.strip(" ▁▂▃▄▅▆▇█") for strip in pilot.app.screen._compositor.render_strips()]


async def settle(pilot):
    for _ in range(4):
        await pilot.pause()


def turns(n):
    """Return questions and answers of many sizes, each line of them known by its number."""
    pieces = []
    for at in range(n // 2):
        pieces.append(UserPiece(f"question {at}"))
        paragraphs = [f"answer {at}.{line} " + "and so on " * (at * line % 23) for line in range(1 + at % 7)]
        pieces.append(ReplyPiece("\n\n".join(paragraphs)))
    return pieces


async def test_of_two_thousand_turns_only_those_near_the_screen_are_widgets(pilot):
    pieces = turns(2000)
    began = time.process_time()
    pane(pilot).add(*pieces)
    await settle(pilot)
    assert time.process_time() - began < 2.0
    assert 3 <= len(pane(pilot).query(Sheet)) < 60
    assert "answer 999." in "\n".join(shown(pilot))
    for where in (0.5, 0.1, 0.9, 0.0, 1.0):
        pane(pilot).scroll_to(y=where * pane(pilot).max_scroll_y, animate=False)
        await settle(pilot)
        assert 3 <= len(pane(pilot).query(Sheet)) < 60
        assert sum(bool(line) for line in shown(pilot)) > HEIGHT / 3
    assert sum(piece.sheet is not None for piece in pieces) == len(pane(pilot).query(Sheet))


async def test_both_ends_are_reached_line_by_line_and_nothing_is_left_out(pilot):
    pane(pilot).add(*turns(120))
    await settle(pilot)
    seen = []
    pane(pilot).scroll_home(animate=False)
    await settle(pilot)
    while True:
        assert len(pane(pilot).query(Sheet)) < 60
        page = [line for line in shown(pilot) if line]
        seen += [line for line in page if line not in seen]
        if pane(pilot).scroll_y >= pane(pilot).max_scroll_y:
            break
        pane(pilot).scroll_page_down(animate=False)
        await settle(pilot)
    firsts = [line for line in seen if line.startswith(("question", "▌", "answer"))]
    expected = []
    for at in range(60):
        expected += [f"▌ question {at}", *[f"answer {at}.{line}" for line in range(1 + at % 7)]]
    found = [
        " ".join(line.split()[:3]) if line[0] == "▌" else line.split()[0] + " " + line.split()[1]
        for line in firsts
    ]
    assert found == expected


async def test_what_is_read_stays_where_it_is_while_heights_above_are_learnt(pilot):
    pane(pilot).add(*turns(400))
    await settle(pilot)
    for _ in range(40):
        before = shown(pilot)
        pane(pilot).scroll_relative(y=-3, animate=False)
        await settle(pilot)
        assert shown(pilot)[3:] == before[:-3]


async def test_the_view_follows_the_end_only_while_the_reader_is_there(pilot):
    pane(pilot).add(*turns(60))
    live = ReplyPiece("begins")
    pane(pilot).add(live)
    await settle(pilot)
    for at in range(30):
        pane(pilot).append(live, f"\n\nline {at}")
        await pilot.pause()
    assert "line 29" in shown(pilot)
    pane(pilot).scroll_relative(y=-5, animate=False)
    await settle(pilot)
    before = shown(pilot)
    for at in range(30, 60):
        pane(pilot).append(live, f"\n\nline {at}")
        await pilot.pause()
    assert shown(pilot) == before
    pane(pilot).scroll_end(animate=False)
    await settle(pilot)
    assert "line 59" in shown(pilot)
    pane(pilot).append(live, "\n\nline 60")
    await settle(pilot)
    assert "line 60" in shown(pilot)


async def test_scrolling_down_at_the_end_or_where_all_fits_does_not_lose_the_end(pilot):
    live = ReplyPiece("begins")
    pane(pilot).add(live)
    await settle(pilot)
    for key in (pane(pilot).scroll_up, pane(pilot).scroll_page_down):
        key(animate=False)
        await settle(pilot)
    for at in range(60):
        pane(pilot).append(live, f"\n\nline {at}")
        await pilot.pause()
    assert "line 59" in shown(pilot)
    pane(pilot).scroll_page_down(animate=False)
    await settle(pilot)
    pane(pilot).append(live, "\n\nlast\n\nlines")
    await settle(pilot)
    assert "lines" in shown(pilot)


async def test_a_reply_out_of_sight_grows_without_a_widget(pilot):
    live = ReplyPiece("begins")
    pane(pilot).add(*turns(400), live)
    await settle(pilot)
    pane(pilot).scroll_home(animate=False)
    await settle(pilot)
    assert live.sheet is None
    before = shown(pilot)
    for at in range(50):
        pane(pilot).append(live, f"\n\nline {at}")
    await settle(pilot)
    assert live.sheet is None
    assert shown(pilot) == before
    pane(pilot).scroll_end(animate=False)
    await settle(pilot)
    assert "line 49" in shown(pilot)


async def test_a_resize_keeps_the_place(pilot):
    pane(pilot).add(*turns(400))
    await settle(pilot)
    pane(pilot).scroll_to(y=pane(pilot).max_scroll_y // 2, animate=False)
    await settle(pilot)
    top = next(line for line in shown(pilot) if line)
    await pilot.resize_terminal(50, HEIGHT)
    await settle(pilot)
    assert top.split()[:2] == next(line for line in shown(pilot) if line).split()[:2]


async def test_a_short_chat_begins_at_the_top_and_a_cleared_one_is_empty(pilot):
    pane(pilot).add(NotePiece("first"))
    await settle(pilot)
    assert shown(pilot)[1] == "first"
    pane(pilot).add(*turns(200))
    await settle(pilot)
    pane(pilot).scroll_home(animate=False)
    await settle(pilot)
    pane(pilot).rearrange([])
    pane(pilot).add(NotePiece("second"))
    await settle(pilot)
    assert shown(pilot)[1] == "second"
    assert not any(shown(pilot)[2:])


async def test_thoughts_unfold_where_they_are_not_mounted_too(pilot):
    thoughts = [ThoughtPiece(f"deep\nthought {at}", seconds=1.0) for at in range(200)]
    pane(pilot).add(*thoughts)
    await settle(pilot)
    pane(pilot).toggle_thoughts()
    await settle(pilot)
    assert "│ thought 199" in shown(pilot)
    pane(pilot).scroll_home(animate=False)
    await settle(pilot)
    assert "│ thought 0" in shown(pilot)
    pane(pilot).toggle_thoughts()
    await settle(pilot)
    assert "│ thought 0" not in shown(pilot)


async def test_an_append_is_cheap_however_long_the_chat(pilot):
    costs = {}
    for n in (20, 2000):
        live = ReplyPiece("```python\n")
        pane(pilot).show([*turns(n), live])
        await settle(pilot)
        costs[n] = []
        for at in range(60):
            began = time.process_time()
            pane(pilot).append(live, f"def f{at}(x: int) -> str:\n    return str(x)  # a comment\n\n\n")
            await pilot.pause()
            costs[n].append(time.process_time() - began)
    assert statistics.median(costs[2000]) < 2 * statistics.median(costs[20]), costs


async def test_fewer_pieces_are_shown_while_one_reads_far_up(pilot):
    pane(pilot).show(list(turns(200)))
    await settle(pilot)
    pane(pilot).scroll_to(y=0.9 * pane(pilot).max_scroll_y, animate=False)
    await settle(pilot)
    for pieces in (turns(2), [], turns(60)):
        pane(pilot).show(list(pieces))
        await settle(pilot)
        pane(pilot).scroll_to(y=0, animate=False)
        await settle(pilot)
    assert "question 0" in "\n".join(shown(pilot))


async def test_the_first_turn_is_reached_from_the_end(pilot):
    pieces = turns(120)
    for number, piece in enumerate(pieces):
        piece.turn = str(number)
    pane(pilot).add(*pieces)
    pane(pilot).focus()
    await settle(pilot)
    await pilot.press("home")
    await settle(pilot)
    assert "question 0" in "\n".join(shown(pilot))
    await pilot.press("end")
    await settle(pilot)
    assert "answer 59." in "\n".join(shown(pilot))


def test_lines_that_are_added_below_are_unread_until_they_were_on_the_screen():
    unread = UnreadLines()
    assert not unread.update([0, 3, 10], 10)
    unread.before_adding([3, 7])
    assert unread.update([0, 3, 10, 14], 8)
    assert unread.count == 4
    unread.before_adding([3, 7, 4])  # still below the same line
    unread.update([5, 8, 15, 19, 20], 8)  # what lies above was measured again
    assert unread.count == 5
    unread.update([5, 8, 15, 19, 20], 17)
    assert unread.count == 3
    unread.update([5, 8, 15, 19, 20], 9)  # up again
    assert unread.count == 3
    assert unread.update([5, 8, 15, 19, 20], 20)
    assert unread.count == 0
    unread.update([5, 8, 15, 19, 26], 20)
    assert unread.count == 0
