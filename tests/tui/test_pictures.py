"""What each screen looks like at 60, 100 and 160 columns, as pictures that are held against the kept ones.

    EDGECHAT_PICTURES=write python -m pytest tests/tui/test_pictures.py      keeps what it sees now

Look at what you keep: any browser shows them.
"""

import json
import os
import re
import sqlite3
from collections.abc import Awaitable, Callable
from datetime import date, datetime
from pathlib import Path

import msgspec
import pytest
from textual.pilot import Pilot
from textual.widgets import Input, OptionList

from edgechat.base import paths
from edgechat.base.errors import EngineCrashed
from edgechat.chat.attachments.images import keep_image
from edgechat.chat.commands import commands_of
from edgechat.chat.conversation import Conversation
from edgechat.chat.records import Attachment
from edgechat.chat.storage.store import Store
from edgechat.documents.collection import Counts
from edgechat.documents.known import KnownCollection
from edgechat.documents.source import PassageSource
from edgechat.engine.types import Dropped
from edgechat.models.hub.progress import ProgressSample
from edgechat.models.remote.model import HostedModel
from edgechat.settings import Preset, SamplingDefaults, Settings
from edgechat.tools.consent import Question
from edgechat.tools.tool import ToolSpec, shown_arguments
from edgechat.tui.app import EdgechatApp
from edgechat.tui.models.pull import PullState
from edgechat.tui.overlays.documents import DocumentsScreen
from edgechat.tui.theme import THEMES
from edgechat.tui.tools.consent import ConsentScreen
from edgechat.tui.transcript.calls import CallPiece
from tests.base.images.files import encoded, quadrants
from tests.chat.offering import call
from tests.fakes import MODEL, FakeEngine, thought
from tests.tui import rooms
from tests.tui.chat.test_seeing import world as seeing_world
from tests.tui.driving import app_with, ask, plan, say, text_of, until
from tests.tui.libraries import GIB, Fake, row
from tests.tui.models.test_screen import world

pytestmark = pytest.mark.slow

MOMENT = datetime(2026, 3, 5, 9, 30)
KEPT = Path(__file__).parent / "pictures"
WIDTHS = (60, 100, 160)
REPLY = """Quantization stores each weight in **fewer bits**.

| quant | bits | loss |
|---|---|---|
| Q8_0 | 8.5 | tiny |
| Q4_K_M | 4.8 | small |

```python
def size(n_params: int, bits: float) -> float:
    return n_params * bits / 8  # bytes
```

1. *Q8_0* is nearly lossless
2. `Q4_K_M` is the usual choice
"""
MARKDOWN = r"""## Attention

It weighs values by $q \cdot k$, see [the paper](https://arxiv.org/abs/1706.03762):

\[
\text{Attention}(Q, K, V) = \text{softmax}\left(\frac{QK^T}{\sqrt{d_k}}\right) V
\]

- [x] divide by $\sqrt{d_k}$
- [ ] ~~forget~~ apply the mask

```python
def attention(q, k, v):
    return softmax(q @ k.T / k.shape[-1] ** 0.5) @ v  # one head of many, without a mask
```

```diff
-scores = q @ k.T
+scores = q @ k.T / scale
```
"""
CITED = (
    "Prime it with oil [1], which must be **warm** below 5 °C [2, 1]. The handbook says “it is too thick to "
    "flow”, and “never start it alone in the dark”.\n\n1. Warm the oil [2].\n2. Start the pump [7].\n"
)
SCRIPTS = ([thought("What do they want to know? "), REPLY], ["Fewer bits, less memory."])


class Today(date):
    """The day of the pictures, whenever they are taken."""

    @classmethod
    def today(cls):
        return MOMENT.date()


class Now(datetime):
    """The moment of the pictures."""

    @classmethod
    def now(cls, tz=None):
        return MOMENT


def pane(pilot):
    assert isinstance(pilot.app, EdgechatApp)
    return pilot.app.chat


async def opened(pilot):
    await until(pilot, lambda: "it is." in text_of(pilot) and "Loading" not in text_of(pilot))
    await until(pilot, lambda: "tokens (" in text_of(pilot) or "of context" in text_of(pilot))


async def asked(pilot):
    await opened(pilot)
    await say(pilot, "What is a quant, in short?")
    await until(pilot, lambda: "usual choice" in text_of(pilot))
    for piece in pane(pilot).transcript.pieces:
        if hasattr(piece, "seconds"):
            piece.finish(12, 1.4)


async def empty(pilot):
    await opened(pilot)


async def chat(pilot):
    await asked(pilot)


async def markdown(pilot):
    await opened(pilot)
    await say(pilot, "What is attention?")
    await until(pilot, lambda: "scale" in text_of(pilot))


async def turns(pilot):
    await asked(pilot)
    await pilot.press("ctrl+r")
    await until(pilot, lambda: "2 of 2" in text_of(pilot))
    await pilot.press("tab")


async def stopped(pilot):
    await asked(pilot)
    await ask(pilot, "And in one word?")
    await until(pilot, lambda: "One, two," in text_of(pilot))
    await pilot.press("escape")
    await until(pilot, lambda: "You stopped the reply here" in text_of(pilot))


async def versions(pilot):
    await turns(pilot)
    await pilot.press("s")
    await until(pilot, lambda: "All versions" in text_of(pilot))


async def found(pilot):
    await asked(pilot)
    await pilot.press(*"/find quant", "enter")
    await until(pilot, lambda: pane(pilot).transcript.is_finding)
    await pilot.press("n")


async def attached(pilot):
    await asked(pilot)
    pane(pilot).pane.attach(Attachment("notes.txt", "milk\neggs"))
    await pilot.press(*"And these?", "ctrl+j")


async def attach_image(pilot):
    library = await pane(pilot).library_of_images()
    pane(pilot).pane.attach(keep_image(library, encoded(quadrants(640, 400), "PNG"), "photo.png"))


async def images(pilot):
    await opened(pilot)
    await attach_image(pilot)
    await say(pilot, "What is on this photo?")
    await until(pilot, lambda: "▀" in text_of(pilot) and "Four colours." in text_of(pilot))
    await attach_image(pilot)
    pane(pilot).pane.attach(Attachment("notes.txt", "milk\neggs"))
    await pilot.press(*"Is that what the notes say?")


async def blind(pilot):
    await opened(pilot)
    await attach_image(pilot)
    await say(pilot, "What is on this photo?")
    await until(pilot, lambda: "F8" in text_of(pilot))
    await until(pilot, lambda: "see images ─╯" in text_of(pilot))


async def server_gone(pilot):
    await opened(pilot)
    await say(pilot, "Why is the sky blue?")
    await until(pilot, lambda: "F8" in text_of(pilot))


async def server_room(pilot):
    await opened(pilot)
    await pilot.press("ctrl+g")
    await until(pilot, lambda: "It tells no metrics." in text_of(pilot))


async def commands(pilot):
    await opened(pilot)
    await pilot.press("/", "p")
    await until(pilot, lambda: "/preset" in text_of(pilot))


async def crash(pilot):
    await opened(pilot)
    await say(pilot, "What now?")
    await until(pilot, lambda: "ended unexpectedly" in text_of(pilot))


async def window(pilot):
    await opened(pilot)
    for number in range(1, 5):
        await say(pilot, f"Question {number}?")
    await until(pilot, lambda: "╌╌╌" in text_of(pilot))


async def parameters(pilot):
    await asked(pilot)
    await pilot.press("f4")
    await until(pilot, lambda: "frequency penalty" in text_of(pilot))


async def palette(pilot):
    await asked(pilot)
    await pilot.press("ctrl+p")
    entries = len(commands_of("app")) + len(THEMES) + 1  # one preset; they come one after the other
    await until(pilot, lambda: any(one.option_count == entries for one in pilot.app.screen.query(OptionList)))
    pilot.app.screen.query_one(Input).cursor_blink = False


async def help_(pilot):
    await opened(pilot)
    await pilot.press("f1")
    await until(pilot, lambda: "Writing" in text_of(pilot))


async def settings(pilot):
    await opened(pilot)
    await pilot.press("f2")
    await until(pilot, lambda: "context" in text_of(pilot))


async def conversations(pilot):
    await opened(pilot)
    await pilot.press("ctrl+b")
    await until(pilot, lambda: "Today" in text_of(pilot))


async def trash(pilot):
    await conversations(pilot)
    await pilot.press("down", "delete")
    await until(pilot, lambda: "in the trash" in text_of(pilot))
    await pilot.press("y")
    await until(pilot, lambda: "bake bread" not in text_of(pilot))
    await pilot.press("t")
    await until(pilot, lambda: "Trash" in text_of(pilot))


async def search(pilot):
    await opened(pilot)
    await pilot.press("ctrl+f", *"sour")
    await until(pilot, lambda: "…" in text_of(pilot) or "sourdough" in text_of(pilot))


async def engine_room(pilot):
    await asked(pilot)
    await pilot.press("ctrl+g")
    await until(pilot, lambda: "Cache" in text_of(pilot))
    panels = pane(pilot).panels
    assert panels._room is not None
    rooms.fill(panels._room)
    await until(pilot, lambda: "4,096" in text_of(pilot))


async def first_run(pilot):
    await until(pilot, lambda: "★ recommended" in text_of(pilot))


async def waiting(pilot):
    """A question waits for a model that is being downloaded; nothing is, in fact."""
    await first_run(pilot)
    pilot.app.chat.controller.downloads.pulls._start_next = lambda: None
    await pilot.press("enter")
    await until(pilot, lambda: "is on its way" in text_of(pilot))
    (pull,) = pane(pilot).controller.downloads.pulls.all
    pull.state = PullState.DOWNLOADING
    pull.progress = ProgressSample(here=GIB, total=3 * GIB, rate=12.5e6)
    await say(pilot, "Why is the sky blue?")
    await until(pilot, lambda: "is answered as soon as" in text_of(pilot))


async def switcher(pilot):
    await first_run(pilot)
    await pilot.press("g", "f5")
    await until(pilot, lambda: "answers now" in text_of(pilot))
    pilot.app.screen.query_one(Input).cursor_blink = False


async def models(pilot):
    await first_run(pilot)
    await pilot.press("m")
    await until(pilot, lambda: "For download" in text_of(pilot) and "~12" in text_of(pilot))
    await pilot.press("down", "down", "down")
    await until(pilot, lambda: "mid-8b, by the tests" in text_of(pilot) or pilot.app.size.width < 100)


async def calls(pilot):
    await opened(pilot)
    await pilot.press(*"/tools calculator,date", "enter")
    await until(pilot, lambda: "tools on" in text_of(pilot))
    await say(pilot, "How much does it cost me in a year?")
    await until(pilot, lambda: "in a year." in text_of(pilot))
    folded = [piece for piece in pane(pilot).transcript.pieces if isinstance(piece, CallPiece)]
    for piece in folded:
        piece.show(msgspec.structs.replace(piece.use, seconds=0.0))
    folded[0].toggle()


async def consent(pilot):
    await asked(pilot)
    tool = ToolSpec(
        server="github",
        name="close_issue",
        title="Close an issue",
        description="Closes an issue of a repository, and says why.",
        destructive=True,
    )
    arguments = '{"repository": "edgechat/edgechat", "number": 27, "comment": "Done.\\u001b[2J"}'
    changed = "-Closes an issue.\n+Closes an issue of a repository, and says why.\n {"
    pilot.app.push_screen(
        ConsentScreen(Question(tool=tool, arguments=shown_arguments(arguments), changed=changed))
    )
    await until(pilot, lambda: "Never" in text_of(pilot))


async def tools(pilot):
    await opened(pilot)
    servers = {"mcpServers": {"github": {"command": "docker", "args": ["run", "ghcr.io/github/mcp"]}}}
    (paths.config_dir() / "mcp.json").write_text(json.dumps(servers))
    await pilot.press("f9")
    await until(pilot, lambda: "github" in text_of(pilot))
    await pilot.press("space")
    await until(pilot, lambda: "calculate " in text_of(pilot))


def passage(number, place, text):
    name = f"[{number}] handbook/pumps.md{', ' * bool(place)}{place}"
    path = "/home/ada/handbook/pumps.md"
    source = PassageSource(
        number=number, collection="handbook", path=path, digest="", start=1, end=9, place=place
    )
    return Attachment(name, text, source)


PASSAGES = (
    passage(1, "lines 12–19", "## Starting\n\nThe pump is primed with oil before it is started.\n"),
    passage(2, "lines 40–44", "## Cold days\n\nBelow 5 °C, warm the oil first: it is too thick to flow.\n"),
)


async def cited(pilot):
    await opened(pilot)
    for one in PASSAGES:
        pane(pilot).pane.attach(one)
    await say(pilot, "How do I start the pump in winter?")
    await until(pilot, lambda: "not in the documents" in text_of(pilot))
    await pilot.press("tab", "up", "enter")


async def passages(pilot):
    await cited(pilot)
    await pilot.press("p", "right")
    await until(pilot, lambda: "not in the documents any more" in text_of(pilot))


async def documents(pilot):
    await opened(pilot)
    counts = Counts(files=214, passages=3901, n_bytes=2_400_000, embedded=0)
    known = [
        KnownCollection(name="handbook", roots=("/home/ada/handbook",), counts=counts),
        KnownCollection(name="notes", problem="The documents notes were indexed by a newer edgechat."),
    ]

    async def save(_):
        pass

    pilot.app.push_screen(DocumentsScreen(known, ["handbook", "old"], save=save))
    await until(pilot, lambda: "◉ old" in text_of(pilot))


Scene = Callable[[Pilot[None]], Awaitable[None]]
SCENES = (
    *(empty, chat, markdown, turns, stopped, versions, found, attached, images, blind),
    *(commands, crash, window, parameters),
    *(palette, help_, settings, conversations, trash, search, engine_room, first_run, waiting, switcher),
    *(models, calls, consent, tools, cited, passages, documents, server_gone, server_room),
)


async def write_conversations(path):
    store = await Store.open(path)
    for question, answer in (
        ("How do I bake bread?", "With flour, water, salt and time. A sourdough takes two days."),
        ("Explain borrow checking", "It proves that nobody reads what somebody else may change."),
        ("Plan a week in Lisbon", "Begin with the tram."),
    ):
        conversation = Conversation(store, "guide")
        async for _ in conversation.send(FakeEngine([answer]), question):
            pass
    (last, *_) = await store.chats()
    await store.update_chat(last.id, pinned=True)
    await store.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE turns SET created_at = ?", (MOMENT.timestamp(),))
        db.execute("UPDATE conversations SET updated_at = ? - rowid", (MOMENT.timestamp(),))


def engine_for(scene):
    if scene is crash:
        died = EngineCrashed("The engine process ended unexpectedly.", hint="Ctrl+R asks again.")
        return FakeEngine(["So far", died])
    if scene is stopped:
        return FakeEngine(SCRIPTS[0], ["One, two,", 60.0])
    if scene is window:
        return FakeEngine(["One."], ["Two."], ["Three."], [Dropped("", 1), "Four."])
    if scene is images:
        engine = FakeEngine(["Four colours."])
        engine.model = msgspec.structs.replace(MODEL, sees=True)
        return engine
    if scene is calls:
        sum_of, day = call("calculate", expression="12 * 17.50"), call("current_date")
        return FakeEngine([thought("A sum."), "Let me see.", sum_of, day], ["It is **210 €** in a year."])
    if scene in (cited, passages):
        return FakeEngine([CITED])
    if scene is server_gone:
        closed = EngineCrashed("desk closed the connection in the middle of its answer.")
        return FakeEngine(["Sunlight is", closed])
    if scene is markdown:
        return FakeEngine([MARKDOWN])
    engine = FakeEngine(*SCRIPTS)
    engine.snapshot = rooms.snapshot() if scene is engine_room else None
    engine.log = rooms.LOG
    return engine


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__.strip("_"))
async def test_a_screen_looks_as_it_did(scene, width, tmp_path, monkeypatch):
    for name in ("NO_COLOR", "EDGECHAT_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("edgechat.tui.conversations.sidebar.date", Today)
    monkeypatch.setattr("edgechat.tui.conversations.rows.datetime", Now)
    monkeypatch.setattr("edgechat.settings.settings_file", lambda: Path("~/.config/edgechat/settings.toml"))
    path = tmp_path / "chats.db"
    if scene in (conversations, trash, search):
        await write_conversations(path)
    library = library_of(tmp_path) if scene in (first_run, waiting, switcher, models) else None
    if scene is blind:
        library = seeing_world(Path("/models"), is_here=True).library()
    presets = {"poet": Preset(system="You write haiku.", sampling=SamplingDefaults(temperature=1.2))}
    model = "guide" if scene is blind else None  # else the first run would be offered
    prepare = plan
    if scene in (server_gone, server_room):
        model, prepare = "desk/qwen3-32b", plan_of_server
        library = Fake(rows=[row("qwen3-4b", Path("/models/qwen.gguf"))]).library()
    app = app_with(
        engine_for(scene),
        path,
        model=model,
        prepare=prepare,
        settings=Settings(presets=presets),
        library=library,
    )
    async with app.run_test(size=(width, 36)) as pilot:
        app.chat.prompt.cursor_blink = False
        await scene(pilot)
        for _ in range(3):
            await pilot.pause()
        # The number names what can be clicked, too, and so the random ids of turns.
        seen = re.sub(r"terminal-\d+", "terminal", app.export_screenshot(title="edgechat"))
        seen = re.sub(r"(Thought&#160;for&#160;)0\.\d", r"\g<1>0.0", seen)  # not busy
    kept = KEPT / f"{scene.__name__.strip('_')}-{width}.svg"
    if os.environ.get("EDGECHAT_PICTURES") == "write":
        kept.write_text(seen)
    if not kept.exists() or kept.read_text() != seen:
        other = tmp_path / kept.name
        other.write_text(seen)
        raise AssertionError(f"{kept.name} looks otherwise now: {other}\nSee the top of {__file__}.")


def plan_of_server(model):
    remote = HostedModel(
        server="desk", id="qwen3-32b", kind="vllm", url="http://desk.local:8000", context=32768
    )
    return msgspec.structs.replace(plan(model), remote=remote, context=32768)


def library_of(tmp_path):
    fake = world(Path("/models"))
    return fake.library()
