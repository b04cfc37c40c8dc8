"""The keys that go to a turn: copy, quote, edit and branch, another try, bring back."""

import pytest

from edgechat.engine.types import Dropped
from tests.fakes import thought

pytestmark = pytest.mark.slow


CODE = "Two ways:\n\n```python\nprint(1)\n```\n\nor\n\n```sh\necho 1\n```\n"


async def copied(pilot, text):
    await pilot.until(lambda: pilot.app.clipboard == text)


async def test_a_turn_is_copied_and_its_code_piece_by_piece(scene):
    async with scene([CODE], notifications=True, say="How?") as pilot:
        await pilot.click_on("copy", see="Copied the code")  # above the first piece
        await copied(pilot, "print(1)\n")
        await pilot.press("tab", "c")
        await copied(pilot, CODE)
        for wanted in ("print(1)\n", "echo 1\n", "print(1)\n"):
            await pilot.press("y")
            await copied(pilot, wanted)
        await pilot.see("1 of 2")
        await pilot.press("up", "c")
        await copied(pilot, "How?")


async def test_escape_leads_back_to_the_prompt_and_so_does_text(scene):
    async with scene(say="Hi") as pilot:
        await pilot.press("tab")
        await pilot.pause()
        assert pilot.app.focused is not pilot.prompt
        await pilot.press("escape")
        assert pilot.app.focused is pilot.prompt
        assert pilot.prompt.text == ""
        await pilot.press("tab")
        await pilot.pause()
        await pilot.press("w", "h", "o", until=lambda: pilot.prompt.text == "who")
        assert pilot.app.focused is pilot.prompt
        await pilot.press("ctrl+up")
        await pilot.pause()
        assert pilot.app.focused is not pilot.prompt


async def test_a_turn_is_quoted(scene):
    async with scene(["One.\n\nTwo."], say="Hi") as pilot:
        await pilot.press("tab", "q")
        await pilot.pause()
        assert pilot.prompt.text == "> One.\n>\n> Two.\n\n"


async def test_another_try_at_a_reply_keeps_the_first_one(scene):
    async with scene(["First try."], ["Second try."], say="Hi") as pilot:
        await pilot.press("ctrl+r", see=("Second try.", "2 of 2"), hidden="First try.")
        assert [message.content for message in pilot.engine.requests[1].messages] == ["Hi"]
        await pilot.press("tab", "left", see=("First try.", "1 of 2"), hidden="Second try.")
        await pilot.press("left", shown="First try.")
        await pilot.press("right", see="Second try.")


async def test_a_question_is_edited_and_both_branches_stay(scene):
    async with scene(["To one."], ["To two."], ["To another two."], size=(100, 40), say="One?") as pilot:
        await pilot.say("Two?")
        await pilot.press(*"half", "tab", "up", "e")
        await pilot.pause()
        assert pilot.prompt.text == "Two?"
        pilot.shows("editing")
        await pilot.press("escape")
        await pilot.pause()
        assert pilot.prompt.text == "half"
        pilot.shows(hidden="editing")
        await pilot.press("tab", "up", "e", *" Or three?", "enter", see="To another two.")
        await pilot.see("2 of 2", hidden="To two.")
        said = [message.content for message in pilot.engine.requests[2].messages]
        assert said == ["One?", "To one.", "Two? Or three?"]
        assert pilot.prompt.text == "half"
        await pilot.press("tab", "up", "left", see="To two.", shown="█ Two?", hidden="To another two.")


async def test_an_earlier_reply_is_tried_again_from_there(scene):
    async with scene(["One."], ["Two."], ["Another one."], size=(100, 40), say=("1?", "2?")) as pilot:
        await pilot.press("tab", "home", "down", "r", see="Another one.", hidden="2?")
        assert [message.content for message in pilot.engine.requests[2].messages] == ["1?"]


async def test_one_thought_is_unfolded(scene):
    async with scene([thought("Hm."), "Yes."], say="Is it?") as pilot:
        await pilot.press("tab", "enter", see="│ Hm.")


async def test_the_line_of_the_window_is_drawn_and_what_left_is_brought_back(scene):
    scripts = [["One."], ["Two."], ["Three."], [Dropped("", 1), "Four."], ["Five."]]
    async with scene(*scripts, size=(100, 50)) as pilot:
        for number in range(1, 5):
            await pilot.say(f"{number}?")
        shown = pilot.text
        assert "1 earlier question, with its answer, is no longer sent to the model" in shown
        at = [shown.index(said) for said in ("One.", "Two.", "╌╌╌", "▌ 3?")]
        assert at == sorted(at)
        await pilot.press("tab", "home", "down", "down", "down", "b", see="▤ earlier: 2?")
        await pilot.say("5?")
        sent = pilot.engine.requests[4].messages[-1].content
        assert "You: 2?" in sent
        assert "Answer: Two." in sent
        assert "╌╌╌" not in pilot.text  # that reply was written with all of it


async def test_a_double_click_makes_a_turn_the_current_one(scene):
    async with scene(["An answer."], say="Hi") as pilot:
        await pilot.click_on("An answer.", hidden="c Copy")
        await pilot.click_on("An answer.", times=2, shown="c Copy")
        await pilot.click_on("c Copy")
        await copied(pilot, "An answer.")


async def test_turns_cannot_be_changed_while_a_reply_is_written(scene):
    async with scene(["One ", 30.0], notifications=True) as pilot:
        await pilot.ask("Count.", see="One")
        await pilot.press("tab", "up", "e", see="An answer is being generated")
