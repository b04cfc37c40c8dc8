"""A chat view without a terminal, for tests of the controller: it remembers what it is told to show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from edgechat.base.errors import EdgechatError
from edgechat.chat.records import AttachedImage, Attachment, Turn
from edgechat.chat.reply.calls import UseChanged
from edgechat.chat.session import ChatSession, SessionServices
from edgechat.engine.types import CachePolicy, Delta, Finished
from edgechat.planner.plan import LoadPlan
from edgechat.settings import Settings
from edgechat.tools.consent import Answer, Question
from edgechat.tui.chat.controller import ChatController
from edgechat.tui.chat.views import Branch, Status, TranscriptView
from edgechat.tui.models.library import ModelLibrary
from tests.fakes import FakeEngine
from tests.tui.driving import plan


class FakeTranscript:
    """The texts of the turns, in display order."""

    def __init__(self) -> None:
        self.turns: dict[str, str] = {}
        self.problems: list[EdgechatError] = []
        self.notes: list[str] = []
        self.plan: LoadPlan | None = None
        self.left_out: list[str] = []
        self.calls: dict[str, str] = {}

    @property
    def text(self) -> str:
        return "\n".join(self.turns.values())

    def show_turns(self, turns: Sequence[tuple[Turn, Branch]], *, keep_problems: bool = False) -> None:
        self.turns = {turn.id: turn.content for turn, _ in turns}
        if not keep_problems:
            self.problems.clear()

    def add_turns(self, turns: Sequence[Turn]) -> None:
        self.turns |= {turn.id: turn.content for turn in turns}

    def add_problem(self, error: EdgechatError) -> None:
        self.problems.append(error)

    def show_model(self, plan: LoadPlan) -> None:
        self.plan = plan

    def add_note(self, text: str) -> bool:
        self.notes.append(text)
        return not self.turns

    def mark_left_out(self, turns: Sequence[Turn]) -> None:
        self.left_out = [turn.id for turn in turns]

    def new_reply(self) -> FakeReply:
        return FakeReply(self)

    def resume_reply(self, turn: Turn) -> FakeReply:
        return FakeReply(self, turn.id)

    def follow_end(self) -> None:
        pass

    async def painted(self) -> None:
        pass


class FakeReply:
    """Shows text at once."""

    def __init__(self, transcript: FakeTranscript, turn: str = "") -> None:
        self._transcript = transcript
        self._turn = turn

    def take(self, delta: Delta) -> None:
        turns, turn = self._transcript.turns, self._turn or delta.request_id
        turns[turn] = turns.get(turn, "") + delta.text

    def take_use(self, event: UseChanged) -> None:
        self._turn = event.turn_id
        self._transcript.calls[event.use.id] = "running" if event.running else event.use.outcome

    def paint(self) -> bool:
        return True

    def finish(self, turn: Turn, branch: Branch) -> None:
        self._transcript.turns[turn.id] = turn.content


class FakePrompt:
    """A prompt and its box; tests type by setting `text`."""

    def __init__(self) -> None:
        self.text = ""
        self.title = ""
        self.attachments: list[Attachment] = []
        self.images: list[AttachedImage] = []
        self.history: Sequence[str] = ()
        self.waiting: Sequence[str] = ()

    @property
    def unsent(self) -> str:
        return self.text

    def put(
        self,
        text: str,
        attachments: Sequence[Attachment],
        images: Sequence[AttachedImage] = (),
        title: str = "",
    ) -> None:
        self.text, self.attachments, self.images = text, list(attachments), list(images)
        self.title = title

    def fill(self, text: str) -> None:
        self.text = text

    def show_waiting(self, questions: Sequence[str]) -> None:
        self.waiting = list(questions)

    def attach(self, attached: Attachment | AttachedImage) -> None:
        if isinstance(attached, AttachedImage):
            self.images.append(attached)
        else:
            self.attachments.append(attached)

    async def attach_file(self, path: str) -> None:
        pass

    async def attach_image(self, path: str) -> None:
        pass

    def select_variable(self, after: tuple[int, int]) -> bool:
        return False

    def quote(self, text: str) -> None:
        self.text += f"> {text}"

    def remember(self, asked: Sequence[str]) -> None:
        self.history = asked

    def forget_history(self) -> None:
        self.history = ()

    def focus(self) -> None:
        pass


class FakeView:
    """A ChatView."""

    def __init__(self) -> None:
        self.is_open = self.is_current = True
        self.pane = self.prompt = FakePrompt()
        self.transcript = FakeTranscript()
        """The transcript being shown."""
        self.messages: list[str] = []
        self.errors: list[EdgechatError] = []
        self.announced: list[str] = []
        self.says_yes = True
        self.asked: list[str] = []
        self.consents: list[tuple[Question, str]] = []
        """The questions asked about tool calls, and the title if the conversation is not in front."""
        self.consent: Callable[[Question], Awaitable[Answer | None]] | None = None
        self.offered: list[str] = []
        self.choice: str | None = None
        self.compared: list[str] = []
        self.chosen_version: int | None = None
        self.activities: list[str] = []
        self.finished: list[Finished] = []
        self.model = ""
        self.downloads = self.notice = ""
        self.first_runs = 0
        self.clipboard = ""
        self.performed: list[str] = []
        self.theme = ""
        self._tasks: set[asyncio.Task[None]] = set()

    async def settled(self) -> None:
        """Wait until nothing is running in the background."""
        while self._tasks:
            await asyncio.gather(*self._tasks)

    def run_in_background(self, work: Coroutine[Any, Any, object], *, ignore_errors: bool = False) -> None:
        async def done() -> None:
            try:
                await work
            except EdgechatError as error:
                if not ignore_errors:
                    self.show_error(error)

        task = asyncio.create_task(done())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def show_message(self, message: str, *, warning: bool = False, seconds: float = 5) -> None:
        self.messages.append(message)

    def clear_messages(self) -> None:
        self.messages.clear()

    def warn(self, message: str) -> None:
        self.messages.append(message)

    def show_error(self, error: EdgechatError) -> None:
        self.errors.append(error)

    def announce(self, message: str) -> None:
        self.announced.append(message)

    async def confirm(self, question: str, *, yes: str, no: str) -> bool:
        self.asked.append(question)
        return self.says_yes

    async def ask_consent(self, question: Question, chat: str) -> Answer | None:
        self.consents.append((question, chat))
        return await self.consent(question) if self.consent is not None else "no"

    async def choose_model(self, title: str, models: Sequence[tuple[str, str]]) -> str | None:
        self.offered = [name for name, _ in models]
        return self.choice

    def show_passages(self, passages: Sequence[Attachment], number: int = 0) -> None:
        self.passages = [passage.name for passage in passages], number

    async def compare(self, versions: Sequence[Turn], shown: int) -> int | None:
        self.compared = [turn.content for turn in versions]
        return self.chosen_version

    def new_transcript(self, *, is_new: bool) -> FakeTranscript:
        return FakeTranscript()

    def show_transcript(self, transcript: TranscriptView, turn: str = "") -> None:
        assert isinstance(transcript, FakeTranscript)
        self.transcript = transcript

    def point_at(self, turn: str) -> None:
        pass

    def show_status(self, status: Status) -> None:
        self.activities.append(status.activity[0])

    def show_finished(self, finished: Finished) -> None:
        self.finished.append(finished)

    def refresh_chat(self) -> None:
        pass

    def show_model(self, plan: LoadPlan) -> None:
        self.model = plan.model_name

    def show_loaded(self) -> None:
        pass

    def show_downloads(self, line: str) -> None:
        self.downloads = line

    def show_notice(self, text: str) -> None:
        self.notice = text

    def show_first_run(self) -> None:
        self.first_runs += 1

    def copy(self, text: str) -> None:
        self.clipboard = text

    def toggle_thought(self, turn: str) -> None:
        pass

    async def restore_panels(self) -> None:
        pass

    async def run_action(self, action: str) -> None:
        self.performed.append(action)

    async def search(self, words: str) -> None:
        pass

    def find(self, words: str) -> bool:
        return words in self.transcript.text

    async def edit_prompt(self) -> None:
        pass

    async def set_theme(self, name: str) -> None:
        self.theme = name


@asynccontextmanager
async def started(
    path: Path,
    engine: FakeEngine,
    *,
    settings: Settings = Settings(),  # noqa: B008  (it is frozen)
    library: ModelLibrary | None = None,
    model: str | None = None,
    last: bool = False,
    typed: str = "",
    prepare: Callable[..., LoadPlan] = plan,
) -> AsyncIterator[tuple[ChatController, FakeView]]:
    """Yield a controller with a model loaded; close it on exit. typed: text typed before it has started."""

    def engine_for(plan: LoadPlan, *, cache_policy: CachePolicy, **_: object) -> FakeEngine:
        engine.reopen(plan, lasting=cache_policy.disk_bytes != 0)
        return engine

    def prepared(model: str, *, leaving: Sequence[LoadPlan] = ()) -> LoadPlan:
        return prepare(model)

    view = FakeView()
    view.pane.text = typed
    services = SessionServices(lambda: path, prepared, engine_for, lambda: settings)
    controller = ChatController(view, ChatSession(services, model), library)
    await controller.start(last=last)
    yield controller, view
    await controller.close()
    await view.settled()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.01)


async def say(controller: ChatController, text: str) -> str:
    """Ask, wait for the reply, and return the conversation's id."""
    controller.ask(text, [])
    await until(lambda: not controller.shown.is_answering)
    return controller.shown.id
