"""Questions that wait for a model that is being downloaded, without a terminal or a hub."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from edgechat.base.errors import ChatBusy, CommandError, DoesNotFit, EdgechatError, HubUnreachable
from edgechat.chat.session import ChatSession, SessionServices
from edgechat.models.request import parse_request
from edgechat.planner.plan import LoadPlan
from edgechat.planner.ranking.pulling import LocalModelEntry
from edgechat.settings import Settings
from edgechat.tui.chat.command_handlers import run_command
from edgechat.tui.chat.controller import ChatController
from edgechat.tui.models.library import ModelLibrary
from edgechat.tui.models.pull import PullState
from tests.fakes import FakeEngine
from tests.tui.chat.views import FakeView

MODEL = "qwen3-0.6b"
ARRIVED = f"{MODEL}:Q8_0"


def plan(model, *, leaving=()):
    if model.startswith("qwen3-8b"):
        raise DoesNotFit("It does not fit any more.")
    return LoadPlan(model_path=model, model_name=model, context=4096, threads=1, reasons=(f"{model} it is.",))


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
async def started(tmp_path, engine, downloads):
    """A controller with the guide loaded, that awaits a model; closed afterwards."""

    def engine_for(plan, *, cache_policy, **_):
        engine.reopen(plan, lasting=cache_policy.disk_bytes != 0)
        return engine

    view = FakeView()
    services = SessionServices(lambda: tmp_path / "chats.db", plan, engine_for, Settings)
    controller = ChatController(view, ChatSession(services), downloads.library())
    await controller.start()
    yield controller, view
    downloads.gate.set()
    await controller.close()
    await view.settled()


def await_model(controller, name=MODEL):
    pull = controller.downloads.pulls.start(name)
    controller.await_model(pull)
    return pull


async def until(true):
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.01)


async def test_a_question_is_answered_when_the_model_is_here(tmp_path):
    downloads, engine = Downloads(), FakeEngine(["Because of scattering."])
    async with started(tmp_path, engine, downloads) as (controller, view):
        await_model(controller)
        assert "is on its way" in view.notice
        controller.ask("Why is the sky blue?", [])
        await asyncio.sleep(0.05)
        assert engine.requests == []
        assert view.pane.text == ""
        assert f"is answered as soon as {MODEL} is here" in view.notice
        assert view.pane.waiting == ["Why is the sky blue?"]
        downloads.gate.set()
        await until(lambda: "scattering" in view.transcript.text)
        assert view.transcript.text == "Why is the sky blue?\nBecause of scattering."
        assert controller.session.model == ARRIVED
        assert view.notice == ""
        await until(lambda: not controller.answering)
        controller.ask("And green?", [])  # nothing is awaited any more
        # Beside a title, which is asked for or not.
        await until(lambda: any(one.messages[-1].content == "And green?" for one in engine.requests))


async def test_the_guide_is_asked_meanwhile(tmp_path):
    downloads, engine = Downloads(), FakeEngine(["F1."], ["Hello."])
    async with started(tmp_path, engine, downloads) as (controller, view):
        await_model(controller)
        controller.ask("Who are you?", [])
        await run_command(controller, "guide", "Which key is help?")
        await until(lambda: "F1." in view.transcript.text)
        assert view.pane.waiting == ["Who are you?"]
        downloads.gate.set()
        await until(lambda: "Hello." in view.transcript.text)
        assert view.transcript.text == "Which key is help?\nF1.\nWho are you?\nHello."


async def test_a_model_that_arrives_interrupts_no_answer(tmp_path):
    downloads, engine = Downloads(), FakeEngine(["One ", 0.3, "two."], ["Hello."])
    async with started(tmp_path, engine, downloads) as (controller, view):
        pull = await_model(controller)
        controller.ask("Who are you?", [])
        await run_command(controller, "guide", "Count.")
        await until(lambda: "One" in view.transcript.text)
        with pytest.raises(ChatBusy):
            controller.ask_guide("More?")
        downloads.gate.set()
        await until(lambda: pull.state is PullState.DONE)
        assert controller.session.model == "guide"
        await until(lambda: "Hello." in view.transcript.text)
        assert view.transcript.text == "Count.\nOne two.\nWho are you?\nHello."


async def test_a_question_is_taken_back(tmp_path):
    downloads, engine = Downloads(), FakeEngine(["Hello."])
    async with started(tmp_path, engine, downloads) as (controller, view):
        await_model(controller)
        controller.ask("Who are", [])
        controller.ask("you?", [])
        assert view.pane.waiting == ["Who are", "you?"]
        view.pane.text = "typed since"
        controller.take_back()
        controller.take_back()
        assert view.pane.text == "Who are\nyou?\ntyped since"
        assert view.pane.waiting == []
        downloads.gate.set()
        await until(lambda: controller.session.model == ARRIVED)
        await view.settled()
        assert engine.requests == []


async def test_a_question_survives_a_failed_download(tmp_path):
    downloads, engine = Downloads(), FakeEngine(["Hello."])
    downloads.error = HubUnreachable("hub is not reachable.", hint="Check the network.")
    async with started(tmp_path, engine, downloads) as (controller, view):
        failed = await_model(controller)
        controller.ask("Who are you?", [])
        downloads.gate.set()
        await until(lambda: failed.is_over)
        await view.settled()
        assert (view.pane.text, view.notice) == ("Who are you?", "")
        (problem,) = view.transcript.problems
        assert problem.message == f"{MODEL} was not downloaded. hub is not reachable."
        assert "Ctrl+O" in (problem.hint or "")
        controller.downloads.pulls.forget(failed)
        assert len(view.transcript.problems) == 1


async def test_a_download_that_is_resumed_is_awaited_again(tmp_path):
    downloads, engine = Downloads(), FakeEngine(["Hello."])
    downloads.error = HubUnreachable("hub is not reachable.")
    downloads.gate.set()
    async with started(tmp_path, engine, downloads) as (controller, view):
        failed = await_model(controller)
        await until(lambda: failed.is_over)
        downloads.error = None
        downloads.gate.clear()
        controller.downloads.pulls.retry(failed)
        controller.ask("Who are you?", [])
        assert view.pane.waiting == ["Who are you?"]
        downloads.gate.set()
        await until(lambda: "Hello." in view.transcript.text)


async def test_a_model_that_cannot_be_loaded_gives_the_question_back(tmp_path):
    downloads, engine = Downloads(), FakeEngine(["I am the guide."])
    async with started(tmp_path, engine, downloads) as (controller, view):
        await_model(controller, "qwen3-8b")
        controller.ask("Who are you?", [])
        downloads.gate.set()
        await until(lambda: bool(view.errors))
        assert (view.pane.text, view.notice) == ("Who are you?", "")
        controller.ask("And you?", [])
        await until(lambda: "I am the guide." in view.transcript.text)


async def test_a_conversation_that_is_left_is_answered_too(tmp_path):
    downloads, engine = Downloads(), FakeEngine(["Hello."])
    async with started(tmp_path, engine, downloads) as (controller, view):
        await_model(controller)
        controller.ask("Who are you?", [])
        controller.begin_new()
        assert view.pane.waiting == []
        assert view.transcript.text == ""
        downloads.gate.set()
        await until(lambda: bool(engine.requests) and not controller.answering)
        await view.settled()
        assert view.messages[-1] == "The reply in “Who are you?” has ended."


async def test_a_question_that_waits_outlives_the_app(tmp_path):
    async with started(tmp_path, FakeEngine(), Downloads()) as (controller, _):
        await_model(controller)
        controller.ask("Who are you?", [])
    async with started(tmp_path, FakeEngine(), Downloads()) as (controller, view):
        assert view.pane.text == "Who are you?"


async def test_another_model_that_is_chosen_answers_what_waits(tmp_path):
    downloads, engine = Downloads(), FakeEngine(["Mine."])
    async with started(tmp_path, engine, downloads) as (controller, view):
        await_model(controller)
        controller.ask("Who are you?", [])
        await controller.switch_model("mine")
        await until(lambda: "Mine." in view.transcript.text)
        downloads.gate.set()
        await until(lambda: ARRIVED in view.notice)  # it is offered, and nothing is switched by itself
        assert controller.session.model == "mine"


async def test_a_better_model_is_offered(tmp_path):
    downloads, engine = Downloads(), FakeEngine(["Hello."])
    async with started(tmp_path, engine, downloads) as (controller, view):
        pulls = controller.downloads.pulls
        first, better = pulls.start(MODEL), pulls.start("qwen3-4b")
        controller.await_model(first, better)
        downloads.gate.set()
        await until(lambda: better.is_over and controller.session.model == ARRIVED)
        await view.settled()
        assert view.notice == "A better model is ready: qwen3-4b:Q8_0. F5 switches to it."
        await controller.switch_model("qwen3-4b:Q8_0")
        assert view.notice == ""


async def test_the_guide_is_asked_only_where_it_is_loaded(tmp_path):
    async with started(tmp_path, FakeEngine(), Downloads()) as (controller, _):
        await controller.switch_model("mine")
        with pytest.raises(CommandError, match="mine answers now"):
            controller.ask_guide("How?")
