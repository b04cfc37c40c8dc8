"""What each screen looks like at 60, 100 and 160 columns, as pictures that are held against the kept ones.

    EDGECHAT_PICTURES=write python -m pytest tests/tui/test_pictures.py      keeps what it sees now

Look at what you keep: any browser shows them.
"""

import json
import os
import re
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path

import msgspec
import pytest
from textual.pilot import Pilot
from textual.widgets import Input, OptionList

from edgechat.base import paths
from edgechat.base.errors import EngineCrashed
from edgechat.chat.attachments import keep_image
from edgechat.chat.commands import commands_of
from edgechat.chat.conversation import Conversation
from edgechat.chat.records import Attachment
from edgechat.chat.storage.store import Store
from edgechat.documents.citations import PassageSource
from edgechat.documents.collection import Counts
from edgechat.documents.registry import KnownCollection
from edgechat.engine.types import Dropped
from edgechat.models.hub.download import ProgressSample
from edgechat.models.local.locations import Place
from edgechat.models.remote.model import HostedModel
from edgechat.settings import Preset, SamplingDefaults, Settings
from edgechat.tools.consent import Question
from edgechat.tools.tool import ToolSpec, shown_arguments
from edgechat.tui.models.pulls import PullState
from edgechat.tui.overlays.consent import ConsentScreen
from edgechat.tui.overlays.switches import DocumentsScreen
from edgechat.tui.theme import THEMES
from edgechat.tui.transcript.turns import CallPiece
from tests.base.images.files import encoded, quadrants
from tests.chat.offering import call
from tests.fakes import MODEL, FakeEngine, send, thought
from tests.tui import rooms
from tests.tui.chat.test_seeing import world as seeing_world
from tests.tui.driving import plan
from tests.tui.libraries import GIB, Fake, option, row
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


async def opened(pilot):
    await pilot.see("it is.", gone="Loading")
    await pilot.until(lambda: "tokens (" in pilot.text or "of context" in pilot.text)


async def asked(pilot):
    await opened(pilot)
    await pilot.say("What is a quant, in short?", see="usual choice")
    for piece in pilot.transcript.pieces:
        if hasattr(piece, "seconds"):
            piece.finish(12, 1.4)


def pressed(name, before, *keys, **look):
    """A screen that comes after another by keys."""

    async def show(pilot):
        await before(pilot)
        await pilot.press(*keys, **look)

    show.__name__ = name
    return show


def said(name, question, **look):
    """A screen that comes of a question."""

    async def show(pilot):
        await opened(pilot)
        await pilot.say(question, **look)

    show.__name__ = name
    return show


empty = pressed("empty", opened)
chat = pressed("chat", asked)
markdown = said("markdown", "What is attention?", see="scale")
server_gone = said("server_gone", "Why is the sky blue?", see="F8")
crash = said("crash", "What now?", see="ended unexpectedly")
server_room = pressed("server_room", opened, "ctrl+g", see="It reports no metrics.")
commands = pressed("commands", opened, "/", "p", see="/preset")
parameters = pressed("parameters", asked, "f4", see="frequency penalty")
help_ = pressed("help_", opened, "f1", see="Writing")
settings = pressed("settings", opened, "f2", see="context")
conversations = pressed("conversations", opened, "ctrl+b", see="Today")


async def search(pilot):
    await opened(pilot)
    await pilot.press("ctrl+f", *"sour", until=lambda: "…" in pilot.text or "sourdough" in pilot.text)


async def turns(pilot):
    await asked(pilot)
    await pilot.press("ctrl+r", see="2 of 2")
    await pilot.press("tab")


async def stopped(pilot):
    await asked(pilot)
    await pilot.ask("And in one word?", see="One, two,")
    await pilot.press("escape", see="You stopped the reply here")


versions = pressed("versions", turns, "s", see="All versions")


async def found(pilot):
    await asked(pilot)
    await pilot.press(*"/find quant", "enter", until=lambda: pilot.transcript.is_finding)
    await pilot.press("n")


async def attached(pilot):
    await asked(pilot)
    pilot.chat.pane.attach(Attachment("notes.txt", "milk\neggs"))
    await pilot.press(*"And these?", "ctrl+j")


async def attach_image(pilot):
    library = await pilot.chat.library_of_images()
    pilot.chat.pane.attach(keep_image(library, encoded(quadrants(640, 400), "PNG"), "photo.png"))


async def images(pilot):
    await opened(pilot)
    await attach_image(pilot)
    await pilot.say("What is on this photo?", see=("▀", "Four colours."))
    await attach_image(pilot)
    pilot.chat.pane.attach(Attachment("notes.txt", "milk\neggs"))
    await pilot.press(*"Is that what the notes say?")


async def blind(pilot):
    await opened(pilot)
    await attach_image(pilot)
    await pilot.say("What is on this photo?", see="F8")
    await pilot.see("see images ─╯")


async def window(pilot):
    await opened(pilot)
    for number in range(1, 5):
        await pilot.say(f"Question {number}?")
    await pilot.see("╌╌╌")


async def palette(pilot):
    await asked(pilot)
    await pilot.press("ctrl+p")
    entries = len(commands_of("app")) + len(THEMES) + 1  # one preset; they come one after the other
    await pilot.until(lambda: any(one.option_count == entries for one in pilot.app.screen.query(OptionList)))
    pilot.app.screen.query_one(Input).cursor_blink = False


async def trash(pilot):
    await conversations(pilot)
    await pilot.press("down", "delete", see="in the trash")
    await pilot.press("y", gone="bake bread")
    await pilot.press("t", see="Trash")


async def engine_room(pilot):
    await asked(pilot)
    await pilot.press("ctrl+g", see="Cache")
    panels = pilot.chat.panels
    assert panels._room is not None
    rooms.fill(panels._room)
    await pilot.see("4,096")


async def first_run(pilot):
    await pilot.see("★ recommended")


async def offline_start(pilot):
    await pilot.see("Models on this machine", "~33 tokens/s")


async def waiting(pilot):
    """A question waits for a model that is being downloaded; nothing is, in fact."""
    await first_run(pilot)
    pilot.controller.models.pulls._start_next = lambda: None
    await pilot.press("enter", see="is downloading")
    (pull,) = pilot.controller.models.pulls.all
    pull.state = PullState.DOWNLOADING
    pull.progress = ProgressSample(here=GIB, total=3 * GIB, rate=12.5e6)
    await pilot.say("Why is the sky blue?", see="Your question will be answered once")


async def switcher(pilot):
    await first_run(pilot)
    await pilot.press("g", "f5", see="Current model: ")
    pilot.app.screen.query_one(Input).cursor_blink = False


async def models(pilot):
    await first_run(pilot)
    await pilot.press("m", see=("For download", "~12"))
    await pilot.press("down", "down", "down")
    await pilot.until(lambda: "mid-8b, by the tests" in pilot.text or pilot.app.size.width < 100)


async def calls(pilot):
    await opened(pilot)
    await pilot.press(*"/tools calculator,date", "enter", see="tools on")
    await pilot.say("How much does it cost me in a year?", see="in a year.")
    folded = [piece for piece in pilot.transcript.pieces if isinstance(piece, CallPiece)]
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
    await pilot.see("Never")


async def tools(pilot):
    await opened(pilot)
    servers = {"mcpServers": {"github": {"command": "docker", "args": ["run", "ghcr.io/github/mcp"]}}}
    (paths.config_dir() / "mcp.json").write_text(json.dumps(servers))
    await pilot.press("f9", see="github")
    await pilot.press("space", see="calculate ")


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
        pilot.chat.pane.attach(one)
    await pilot.say("How do I start the pump in winter?", see="not in the documents")
    await pilot.press("tab", "up", "enter")


async def passages(pilot):
    await cited(pilot)
    await pilot.press("p", "right", see="no longer in the documents")


async def documents(pilot):
    await opened(pilot)
    counts = Counts(files=214, passages=3901, n_bytes=2_400_000, embedded=0)
    known = [
        KnownCollection(name="handbook", roots=("/home/ada/handbook",), counts=counts),
        KnownCollection(name="notes", problem="The collection notes was indexed by a newer edgechat."),
    ]

    async def save(_):
        pass

    pilot.app.push_screen(DocumentsScreen(known, ["handbook", "old"], save=save))
    await pilot.see("◉ old")


Scene = Callable[[Pilot[None]], Awaitable[None]]
SCENES = (
    *(empty, chat, markdown, turns, stopped, versions, found, attached, images, blind),
    *(commands, crash, window, parameters),
    *(palette, help_, settings, conversations, trash, search, engine_room, first_run),
    *(offline_start, waiting, switcher),
    *(models, calls, consent, tools, cited, passages, documents, server_gone, server_room),
)


OPENED_ANEW = (parameters, palette, search)
"""What looks otherwise where it was opened at another width."""


async def write_conversations(path):
    store = await Store.open(path)
    for question, answer in (
        ("How do I bake bread?", "With flour, water, salt and time. A sourdough takes two days."),
        ("Explain borrow checking", "It proves that nobody reads what somebody else may change."),
        ("Plan a week in Lisbon", "Begin with the tram."),
    ):
        conversation = Conversation(store, "guide")
        async for _ in send(conversation, FakeEngine([answer]), question):
            pass
    (last, *_) = await store.chats()
    await store.update_chat(last.id, pinned=True)
    await store.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE turns SET created_at = ?", (MOMENT.timestamp(),))
        db.execute("UPDATE conversations SET updated_at = ? - rowid", (MOMENT.timestamp(),))


def engine_for(picture):
    if picture is crash:
        died = EngineCrashed("The engine process ended unexpectedly.", hint="Ctrl+R asks again.")
        return FakeEngine(["So far", died])
    if picture is stopped:
        return FakeEngine(SCRIPTS[0], ["One, two,", 60.0])
    if picture is window:
        return FakeEngine(["One."], ["Two."], ["Three."], [Dropped("", 1), "Four."])
    if picture is images:
        engine = FakeEngine(["Four colours."])
        engine.model = msgspec.structs.replace(MODEL, sees=True)
        return engine
    if picture is calls:
        sum_of, day = call("calculate", expression="12 * 17.50"), call("current_date")
        return FakeEngine([thought("A sum."), "Let me see.", sum_of, day], ["It is **210 €** in a year."])
    if picture in (cited, passages):
        return FakeEngine([CITED])
    if picture is server_gone:
        closed = EngineCrashed("desk closed the connection in the middle of its answer.")
        return FakeEngine(["Sunlight is", closed])
    if picture is markdown:
        return FakeEngine([MARKDOWN])
    engine = FakeEngine(*SCRIPTS)
    engine.snapshot = rooms.snapshot() if picture is engine_room else None
    engine.log = rooms.LOG
    return engine


CASES = (
    *((one, (WIDTHS * 2)[at % 3 :][:3]) for at, one in enumerate(SCENES) if one not in OPENED_ANEW),
    *((one, (width,)) for one in OPENED_ANEW for width in WIDTHS),
)
"""Each screen is opened at one width, and then resized to the others: each is the first one of a third."""


TINY = ((9, 3), (4, 1), (2, 5), (1, 24), (1, 1))
"""Sizes of a terminal at which nothing can be read, and no screen may end the app."""

NAMES = [f"{one.__name__.strip('_')} from {widths[0]}" for one, widths in CASES]


@pytest.mark.parametrize(("picture", "widths"), CASES, ids=NAMES)
async def test_a_screen_looks_as_it_did(picture, widths, scene, tmp_path, monkeypatch):
    for name in ("NO_COLOR", "EDGECHAT_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("edgechat.tui.conversations.sidebar.date", Today)
    monkeypatch.setattr("edgechat.tui.conversations.listing.datetime", Now)
    monkeypatch.setattr("edgechat.settings.settings_file", lambda: Path("~/.config/edgechat/settings.toml"))
    if picture in (conversations, trash, search):
        await write_conversations(scene.path)
    library = library_of(tmp_path) if picture in (first_run, waiting, switcher, models) else None
    if picture is offline_start:
        library = offline_world().library()
    if picture is blind:
        library = seeing_world(Path("/models"), is_here=True).library()
    presets = {"poet": Preset(system="You write haiku.", sampling=SamplingDefaults(temperature=1.2))}
    options = {
        "model": "guide" if picture is blind else None,
        "prepare": plan,
    }  # else the first run is offered
    if picture in (server_gone, server_room):
        options = {"model": "desk/qwen3-32b", "prepare": plan_of_server}
        library = Fake(rows=[row("qwen3-4b", Path("/models/qwen.gguf"))]).library()
    options |= {"library": library, "settings": Settings(presets=presets)}
    async with scene(engine_for(picture), size=(widths[0], 36), **options) as pilot:
        pilot.prompt.cursor_blink = False
        await picture(pilot)
        wrong = []
        for width in widths:
            await pilot.resize_terminal(width, 36)
            for _ in range(3):
                await pilot.pause()
            kept = KEPT / f"{picture.__name__.strip('_')}-{width}.svg"
            if not is_as_kept(kept, pilot.app.export_screenshot(title="edgechat"), tmp_path / kept.name):
                wrong.append(kept.name)
        for size in TINY:  # a tiling window manager or a dragged border passes through them
            await pilot.resize_terminal(*size)
            await pilot.pause()
    assert not wrong, f"They look otherwise now, as in {tmp_path}. See the top of {__file__}."


def is_as_kept(kept, seen, other):
    # The number names what can be clicked, too, and so the random ids of turns.
    seen = re.sub(r"terminal-\d+", "terminal", seen)
    seen = re.sub(r"(Thought&#160;for&#160;)0\.\d", r"\g<1>0.0", seen)  # not busy
    if os.environ.get("EDGECHAT_PICTURES") == "write":
        kept.write_text(seen)
    other.write_text(seen)
    return kept.exists() and kept.read_text() == seen


def plan_of_server(model):
    remote = HostedModel(
        server="desk", id="qwen3-32b", kind="vllm", url="http://desk.local:8000", context=32768
    )
    return msgspec.structs.replace(plan(model), remote=remote, context=32768)


def offline_world():
    """Return what is found without a network: our own model, one of Ollama, and one in the downloads."""
    download = Path("/home/me/Downloads/mine.gguf")
    return replace(
        world(Path("/models")),
        offline="EDGECHAT_OFFLINE",
        nearby=[row("mine", download, place=Place.ELSEWHERE, n_params=7 * 10**9)],
        local={download: option("mine", tps=33.0, path=download)},
    )


def library_of(tmp_path):
    fake = world(Path("/models"))
    return fake.library()
