"""The beginning of a new conversation: the model that answers, and questions to begin with."""

import msgspec
import pytest

from edgechat.planner.estimate.speed import Prediction
from edgechat.planner.plan import DraftPlan
from edgechat.tui.chat.screen import ChatScreen
from edgechat.tui.transcript.welcome import WelcomePiece, questions_for
from tests.tui.driving import plan

GUIDE = questions_for("guide")
PLAN = msgspec.structs.replace(plan("qwen3-4b"), quant="Q4_K_M", n_layers=36, threads=6)


def shown(piece, width=72):
    return "\n".join(line.content.plain for line in piece.lay_out(width))


def test_the_questions_suit_the_model():
    assert all(any(word in question for word in ("edgechat", "file", "model")) for question in GUIDE)
    for coder in ("qwen3-coder-30b", "codestral-22b", "deepseek-coder-v2", "StarCoder2-7B-Q4_K_M.gguf"):
        assert "Python" in questions_for(coder)[0]
    for other in ("qwen3-4b", "gemma-3-4b", "/models/decoded-3b.gguf"):
        assert questions_for(other) not in (GUIDE, questions_for("qwen3-coder-30b"))
    assert {len(questions_for(name)) for name in ("guide", "codestral", "gemma")} == {3}


@pytest.mark.parametrize("width", [24, 40, 72, 160])
def test_the_card_says_what_answers_and_where(width):
    piece = WelcomePiece()
    assert "context" not in shown(piece)
    draft = DraftPlan(model_path="", model_name="qwen3-0.6b", context=4096)
    predicted = Prediction(decode_tps=8.43, prompt_tps=90.0, ttft_ms=900.0, basis="measured")
    drafted = msgspec.structs.replace(PLAN, draft=draft, ngrams=True, predicted=predicted)
    piece.show_model(drafted)
    assert all(len(line) <= width for line in shown(piece, width).split("\n"))
    text = shown(piece)
    facts = ("qwen3-4b Q4_K_M", "4,096 tokens", "CPU, 6 threads", "about 8.4", "qwen3-0.6b", "n-grams")
    assert all(fact in text for fact in facts) or width == 24
    piece.show_model(msgspec.structs.replace(PLAN, devices=("CUDA0",), split=(20,)))
    assert "CUDA0 (20 of 37 layers), CPU" in shown(piece)
    piece.show_model(msgspec.structs.replace(PLAN, devices=("CUDA0", "CUDA1"), split=(20, 17)))
    assert "runs on  CUDA0, CUDA1 " in shown(piece)


def test_notes_stay_once_there_are_turns():
    piece = WelcomePiece(PLAN)
    piece.append("Nothing is saved.\x1b[2J")
    assert "! Nothing is saved.[2J" in shown(piece)
    piece.begin()
    assert shown(piece) == "! Nothing is saved.[2J"
    assert not piece.questions


@pytest.mark.slow
async def test_a_question_is_taken_by_its_number_or_a_click_and_can_be_changed(scene):
    async with scene(["Like this."], ["One."], size=(100, 40)) as pilot:
        assert isinstance(pilot.chat, ChatScreen)
        await pilot.see(GUIDE[2])
        await pilot.press("2", "enter", until=lambda: pilot.prompt.text == GUIDE[1])
        assert not pilot.engine.requests
        pilot.prompt.fill("")
        y = next(y for y, line in enumerate(pilot.text.split("\n")) if GUIDE[2] in line)
        await pilot.click(offset=(12, y))
        await pilot.until(lambda: pilot.prompt.text == GUIDE[2])
        await pilot.press(*"!", "enter", see="Like this.")
        assert pilot.engine.requests[0].messages[-1].content == f"{GUIDE[2]}!"
        pilot.shows(hidden=GUIDE[0])
        assert "context" not in pilot.text.split("Like this.")[0]
        await pilot.say("1")
        assert pilot.engine.requests[1].messages[-1].content == "1"
        await pilot.press("ctrl+n", see=GUIDE[0])


@pytest.mark.slow
async def test_what_was_being_typed_is_set_aside_for_a_question(scene):
    async with scene(size=(100, 40)) as pilot:
        assert isinstance(pilot.chat, ChatScreen)
        await pilot.see(GUIDE[0])
        await pilot.press(*"my own")
        y = next(y for y, line in enumerate(pilot.text.split("\n")) if GUIDE[0] in line)
        await pilot.click(offset=(12, y))
        await pilot.until(lambda: pilot.prompt.text == GUIDE[0])
        await pilot.press("escape", until=lambda: pilot.prompt.text == "my own")
