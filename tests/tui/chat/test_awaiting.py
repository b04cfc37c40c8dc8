"""Questions that wait for a model that is being downloaded, without a terminal or a hub."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgechat.base.errors import ChatBusy, CommandError, DoesNotFit, EdgechatError, HubUnreachable
from edgechat.models.request import parse_request
from edgechat.planner.ranking.pulling import LocalModelEntry
from edgechat.tui.chat.commands import run_command
from edgechat.tui.models.library import ModelLibrary
from edgechat.tui.models.pulls import PullState
from tests.fakes import FakeEngine
from tests.tui import driving
from tests.tui.chat.views import started, until

MODEL = "qwen3-0.6b"
ARRIVED = f"{MODEL}:Q8_0"
QUESTION = "Who are you?"


def plan(model):
    if model.startswith("qwen3-8b"):
        raise DoesNotFit("It does not fit any more.")
    return driving.plan(model)


@dataclass
class Downloads:
    """A library whose downloads end when they are let go, with an error or a model."""

    gate: threading.Event = field(default_factory=threading.Event)
    error: EdgechatError | None = None

    def decide(self, name, quant, tell):
        self.gate.wait(10)
        if self.error is not None:
            raise self.error
        return LocalModelEntry(parse_request(name), "Q8_0", Path("/models/x"))

    def library(self):
        return replace(ModelLibrary.real(), decide=self.decide, offline=lambda: "")


@asynccontextmanager
async def awaiting(path, *scripts, model=MODEL, questions=(QUESTION,), error=None):
    """A controller with the guide loaded, which awaits a model for some questions."""
    downloads, engine = Downloads(error=error), FakeEngine(*scripts)
    async with started(path, engine, prepare=plan, library=downloads.library()) as (controller, view):
        pull = controller.models.pulls.start(model) if model else None
        if pull is not None:
            controller.models.wait_for(pull)
        for question in questions:
            controller.ask(question, [])
        yield SimpleNamespace(
            controller=controller,
            view=view,
            downloads=downloads,
            engine=engine,
            pull=pull,
            come=downloads.gate.set,
        )
        downloads.gate.set()


async def shown(chat, text):
    await until(lambda: text in chat.view.transcript.text)


async def test_a_question_is_answered_when_the_model_is_here(path):
    async with awaiting(path, ["Because of scattering."], questions=()) as chat:
        view = chat.view
        assert "is downloading" in view.notice
        chat.controller.ask("Why is the sky blue?", [])
        await asyncio.sleep(0.05)
        assert (chat.engine.requests, view.pane.text) == ([], "")
        assert f"Your question will be answered once {MODEL} is ready" in view.notice
        assert view.pane.waiting == ["Why is the sky blue?"]
        chat.come()
        await shown(chat, "scattering")
        assert view.transcript.text == "Why is the sky blue?\nBecause of scattering."
        assert (chat.controller.session.model, view.notice) == (ARRIVED, "")
        await until(lambda: not chat.controller.answering)
        chat.controller.ask("And green?", [])  # nothing is awaited any more
        # Beside a title, which is asked for or not.
        await until(lambda: any(one.messages[-1].content == "And green?" for one in chat.engine.requests))


async def test_the_guide_is_asked_meanwhile(path):
    async with awaiting(path, ["F1."], ["Hello."]) as chat:
        await run_command(chat.controller, "guide", "Which key is help?")
        await shown(chat, "F1.")
        assert chat.view.pane.waiting == [QUESTION]
        chat.come()
        await shown(chat, "Hello.")
        assert chat.view.transcript.text == "Which key is help?\nF1.\nWho are you?\nHello."


@pytest.mark.slow
async def test_a_model_that_arrives_interrupts_no_answer(path):
    arrived = asyncio.Event()
    async with awaiting(path, ["One ", arrived, "two."], ["Hello."]) as chat:
        await run_command(chat.controller, "guide", "Count.")
        await shown(chat, "One")
        with pytest.raises(ChatBusy):
            chat.controller.ask_guide("More?")
        chat.come()
        await until(lambda: chat.pull.state is PullState.DONE)
        assert chat.controller.session.model == "guide"
        arrived.set()
        await shown(chat, "Hello.")
        assert chat.view.transcript.text == "Count.\nOne two.\nWho are you?\nHello."


async def test_a_question_is_taken_back(path):
    async with awaiting(path, ["Hello."], questions=("Who are", "you?")) as chat:
        assert chat.view.pane.waiting == ["Who are", "you?"]
        chat.view.pane.text = "typed since"
        chat.controller.take_back()
        chat.controller.take_back()
        assert (chat.view.pane.text, chat.view.pane.waiting) == ("Who are\nyou?\ntyped since", [])
        chat.come()
        await until(lambda: chat.controller.session.model == ARRIVED)
        await chat.view.settled()
        assert chat.engine.requests == []


async def test_a_question_survives_a_failed_download(path):
    error = HubUnreachable("hub is not reachable.", hint="Check the network.")
    async with awaiting(path, ["Hello."], error=error) as chat:
        chat.come()
        await until(lambda: chat.pull.is_over)
        await chat.view.settled()
        assert (chat.view.pane.text, chat.view.notice) == (QUESTION, "")
        (problem,) = chat.view.transcript.problems
        assert problem.message == f"{MODEL} was not downloaded. hub is not reachable."
        assert "Ctrl+O" in (problem.hint or "")
        chat.controller.models.pulls.forget(chat.pull)
        assert len(chat.view.transcript.problems) == 1


async def test_a_download_that_is_resumed_is_awaited_again(path):
    async with awaiting(path, ["Hello."], questions=(), error=HubUnreachable("It is gone.")) as chat:
        chat.come()
        await until(lambda: chat.pull.is_over)
        chat.downloads.error = None
        chat.downloads.gate.clear()
        chat.controller.models.pulls.retry(chat.pull)
        chat.controller.ask(QUESTION, [])
        assert chat.view.pane.waiting == [QUESTION]
        chat.come()
        await shown(chat, "Hello.")


async def test_a_model_that_cannot_be_loaded_gives_the_question_back(path):
    async with awaiting(path, ["I am the guide."], model="qwen3-8b") as chat:
        chat.come()
        await until(lambda: bool(chat.view.errors))
        assert (chat.view.pane.text, chat.view.notice) == (QUESTION, "")
        chat.controller.ask("And you?", [])
        await shown(chat, "I am the guide.")


async def test_a_conversation_that_is_left_is_answered_too(path):
    async with awaiting(path, ["Hello."]) as chat:
        chat.controller.begin_new()
        assert (chat.view.pane.waiting, chat.view.transcript.text) == ([], "")
        chat.come()
        await until(lambda: bool(chat.engine.requests) and not chat.controller.answering)
        await chat.view.settled()
        assert chat.view.messages[-1] == "The reply in “Who are you?” has ended."


async def test_a_question_that_waits_outlives_the_app(path):
    async with awaiting(path):
        pass
    async with awaiting(path, model=None, questions=()) as chat:
        assert chat.view.pane.text == QUESTION


async def test_another_model_that_is_chosen_answers_what_waits(path):
    async with awaiting(path, ["Mine."]) as chat:
        await chat.controller.switch_model("mine")
        await shown(chat, "Mine.")
        chat.come()
        await until(lambda: ARRIVED in chat.view.notice)  # it is offered, and nothing is switched by itself
        assert chat.controller.session.model == "mine"


async def test_a_better_model_is_offered(path):
    async with awaiting(path, ["Hello."], model=None, questions=()) as chat:
        pulls = chat.controller.models.pulls
        first, better = pulls.start(MODEL), pulls.start("qwen3-4b")
        chat.controller.models.wait_for(first, better)
        chat.come()
        await until(lambda: better.is_over and chat.controller.session.model == ARRIVED)
        await chat.view.settled()
        assert chat.view.notice == "A better model is ready: qwen3-4b:Q8_0. F5 switches to it."
        await chat.controller.switch_model("qwen3-4b:Q8_0")
        assert chat.view.notice == ""


async def test_the_guide_is_asked_only_where_it_is_loaded(path):
    async with awaiting(path, model=None, questions=()) as chat:
        await chat.controller.switch_model("mine")
        with pytest.raises(CommandError, match="The current model is mine, not the guide"):
            chat.controller.ask_guide("How?")


async def begun_again(path, *, chosen="guide", error=None, stopped=False):
    """Close the app while a model and a better one are awaited; return what the next start downloads."""
    async with awaiting(path, model=None, questions=(), error=error) as chat:
        controller, pulls = chat.controller, chat.controller.models.pulls
        first, better = pulls.start(MODEL), pulls.start("qwen3-4b")
        controller.models.wait_for(first, better)
        if error is not None:
            chat.come()
            await until(lambda: better.is_over)
        if stopped:
            pulls.stop(first)
        if chosen != "guide":
            await controller.switch_model(chosen)
        await chat.view.settled()
        await controller.session.remember_model()
    async with awaiting(path, ["Hello."], model=None, questions=()) as chat:
        controller = chat.controller
        names = [pull.name for pull in controller.models.pulls.all]
        awaited = controller.models.awaited
        chat.come()
        await until(lambda: all(pull.is_over for pull in controller.models.pulls.all))
        await chat.view.settled()
        return names, awaited and awaited.name, controller.session.model


async def test_the_next_start_goes_on_with_what_was_awaited(path):
    assert await begun_again(path) == ([MODEL, "qwen3-4b"], MODEL, ARRIVED)


async def test_and_where_the_network_was_gone(path):
    error = HubUnreachable("It is gone.")
    assert await begun_again(path, error=error) == ([MODEL, "qwen3-4b"], MODEL, ARRIVED)


async def test_but_not_with_what_cannot_come(path):
    assert await begun_again(path, error=DoesNotFit("It does not fit.")) == ([], None, "guide")


async def test_nor_with_what_was_stopped(path):
    assert await begun_again(path, stopped=True) == (["qwen3-4b"], None, "guide")


async def test_a_model_that_was_chosen_meanwhile_stays(path):
    assert await begun_again(path, chosen="mine") == (["qwen3-4b"], None, "mine")
