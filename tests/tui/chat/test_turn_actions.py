"""The keys that go to a turn: copy, quote, edit and branch, another try, bring back."""

import pytest

from edgechat.engine.types import Dropped
from tests.fakes import FakeEngine, thought
from tests.tui.driving import app_with, ask, say, text_of, until

pytestmark = pytest.mark.slow


@pytest.fixture
def path(tmp_path):
    return tmp_path / "chats.db"


CODE = "Two ways:\n\n```python\nprint(1)\n```\n\nor\n\n```sh\necho 1\n```\n"


async def test_a_turn_is_copied_and_its_code_piece_by_piece(path):
    async with app_with(FakeEngine([CODE]), path).run_test(notifications=True) as pilot:
        await say(pilot, "How?")
        await pilot.press("tab", "c")
        assert pilot.app.clipboard == CODE
        for wanted in ("print(1)\n", "echo 1\n", "print(1)\n"):
            await pilot.press("y")
            await pilot.pause()
            assert pilot.app.clipboard == wanted
        await until(pilot, lambda: "1 of 2" in text_of(pilot))
        await pilot.press("up", "c")
        assert pilot.app.clipboard == "How?"


async def test_a_click_above_code_copies_it(path):
    async with app_with(FakeEngine([CODE]), path).run_test(notifications=True) as pilot:
        await say(pilot, "How?")
        lines = text_of(pilot).split("\n")
        y = next(y for y, line in enumerate(lines) if "python" in line and "copy" in line)
        await pilot.click(offset=(lines[y].index("copy") + 1, y))
        assert pilot.app.clipboard == "print(1)\n"
        await until(pilot, lambda: "Copied the code" in text_of(pilot))


async def test_escape_leads_back_to_the_prompt_and_so_does_text(path):
    async with app_with(FakeEngine(), path).run_test() as pilot:
        await say(pilot, "Hi")
        prompt = pilot.app.screen.prompt
        await pilot.press("tab")
        await pilot.pause()
        assert pilot.app.focused is not prompt
        await pilot.press("escape")
        assert pilot.app.focused is prompt
        assert prompt.text == ""
        await pilot.press("tab")
        await pilot.pause()
        await pilot.press("w", "h", "o")
        await until(pilot, lambda: prompt.text == "who")
        assert pilot.app.focused is prompt
        await pilot.press("ctrl+up")
        await pilot.pause()
        assert pilot.app.focused is not prompt


async def test_a_turn_is_quoted(path):
    async with app_with(FakeEngine(["One.\n\nTwo."]), path).run_test() as pilot:
        await say(pilot, "Hi")
        await pilot.press("tab", "q")
        await pilot.pause()
        assert pilot.app.screen.prompt.text == "> One.\n>\n> Two.\n\n"


async def test_another_try_at_a_reply_keeps_the_first_one(path):
    engine = FakeEngine(["First try."], ["Second try."])
    async with app_with(engine, path).run_test() as pilot:
        await say(pilot, "Hi")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "Second try." in text_of(pilot) and "2 of 2" in text_of(pilot))
        assert "First try." not in text_of(pilot)
        assert [message.content for message in engine.requests[1].messages] == ["Hi"]
        await pilot.press("tab", "left")
        await until(pilot, lambda: "First try." in text_of(pilot) and "1 of 2" in text_of(pilot))
        assert "Second try." not in text_of(pilot)
        await pilot.press("left")
        await pilot.pause()
        assert "First try." in text_of(pilot)
        await pilot.press("right")
        await until(pilot, lambda: "Second try." in text_of(pilot))


async def test_a_question_is_edited_and_both_branches_stay(path):
    engine = FakeEngine(["To one."], ["To two."], ["To another two."])
    async with app_with(engine, path).run_test(size=(100, 40)) as pilot:
        prompt = pilot.app.screen.prompt
        await say(pilot, "One?")
        await say(pilot, "Two?")
        await pilot.press(*"half", "tab", "up", "e")
        await pilot.pause()
        assert prompt.text == "Two?"
        assert "editing" in text_of(pilot)
        await pilot.press("escape")
        await pilot.pause()
        assert prompt.text == "half"
        assert "editing" not in text_of(pilot)
        await pilot.press("tab", "up", "e", *" Or three?", "enter")
        await until(pilot, lambda: "To another two." in text_of(pilot))
        await until(pilot, lambda: "2 of 2" in text_of(pilot))
        assert "To two." not in text_of(pilot)
        said = [message.content for message in engine.requests[2].messages]
        assert said == ["One?", "To one.", "Two? Or three?"]
        assert prompt.text == "half"
        await pilot.press("tab", "up", "left")
        await until(pilot, lambda: "To two." in text_of(pilot))
        assert "█ Two?" in text_of(pilot)
        assert "To another two." not in text_of(pilot)


async def test_an_earlier_reply_is_tried_again_from_there(path):
    engine = FakeEngine(["One."], ["Two."], ["Another one."])
    async with app_with(engine, path).run_test(size=(100, 40)) as pilot:
        await say(pilot, "1?")
        await say(pilot, "2?")
        await pilot.press("tab", "home", "down", "r")
        await until(pilot, lambda: "Another one." in text_of(pilot))
        assert "2?" not in text_of(pilot)
        assert [message.content for message in engine.requests[2].messages] == ["1?"]


async def test_one_thought_is_unfolded(path):
    async with app_with(FakeEngine([thought("Hm."), "Yes."]), path).run_test() as pilot:
        await say(pilot, "Is it?")
        await pilot.press("tab", "enter")
        await until(pilot, lambda: "│ Hm." in text_of(pilot))


async def test_the_line_of_the_window_is_drawn_and_what_left_is_brought_back(path):
    scripts = [["One."], ["Two."], ["Three."], [Dropped("", 1), "Four."], ["Five."]]
    engine = FakeEngine(*scripts)
    async with app_with(engine, path).run_test(size=(100, 50)) as pilot:
        for number in range(1, 5):
            await say(pilot, f"{number}?")
        shown = text_of(pilot)
        assert "1 earlier question, with its answer, is no longer sent to the model" in shown
        at = [shown.index(said) for said in ("One.", "Two.", "╌╌╌", "▌ 3?")]
        assert at == sorted(at)
        await pilot.press("tab", "home", "down", "down", "down", "b")
        await until(pilot, lambda: "▤ earlier: 2?" in text_of(pilot))
        await say(pilot, "5?")
        sent = engine.requests[4].messages[-1].content
        assert "You: 2?" in sent
        assert "Answer: Two." in sent
        assert "╌╌╌" not in text_of(pilot)  # that reply was written with all of it


async def test_a_double_click_makes_a_turn_the_current_one(path):
    async with app_with(FakeEngine(["An answer."]), path).run_test() as pilot:
        await say(pilot, "Hi")
        rows = text_of(pilot).split("\n")
        y = next(y for y, row in enumerate(rows) if "An answer." in row)
        await pilot.click(offset=(rows[y].index("An"), y))
        await pilot.pause()
        assert "c Copy" not in text_of(pilot)
        await pilot.click(offset=(rows[y].index("An"), y), times=2)
        await pilot.pause()
        assert "c Copy" in text_of(pilot)
        x = text_of(pilot).split("\n")[-1].index("c Copy")
        await pilot.click(offset=(x, len(rows) - 1))
        await pilot.pause()
        assert pilot.app.clipboard == "An answer."


async def test_turns_cannot_be_changed_while_a_reply_is_written(path):
    async with app_with(FakeEngine(["One ", 30.0]), path).run_test(notifications=True) as pilot:
        await ask(pilot, "Count.")
        await until(pilot, lambda: "One" in text_of(pilot))
        await pilot.press("tab", "up", "e")
        await until(pilot, lambda: "An answer is being generated" in text_of(pilot))
