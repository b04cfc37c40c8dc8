"""Text of strangers where it is edited, in the widgets and in a real terminal."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from textual.app import App
from textual.widgets import Input, OptionList, Static, TextArea

import edgechat.tui
from edgechat.base.text import visible
from edgechat.chat.import_export.importing import parse_chat
from edgechat.chat.storage.store import Store
from edgechat.tui.app import EdgechatApp
from edgechat.tui.widgets.fields import Area, LineField
from tests import scripted
from tests.terminal import Terminal, hostile, needs_tmux
from tests.tui.driving import driven

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
CONTROLS = "".join(map(chr, [*range(9), *range(0x0B, 0x20), *range(0x7F, 0xA0)])) + BIDI
COPY = "\x1b]52;c;aGFja2Vk\x1b\\"
EVIL = f"{COPY} \x9d52;c;aGFja2Vk\x9c \u202egpj\u2066 end"


def test_no_widget_that_edits_is_textuals_own():
    own = {"fields.py": {"TextArea", "Input"}}
    for path in Path(edgechat.tui.__file__).parent.rglob("*.py"):
        source = re.sub(r'"""[\s\S]*?"""', "", path.read_text())
        used = {"TextArea", "Input", "MaskedInput"} & set(re.findall(r"\w+", source))
        used -= own.get(path.name, set())
        assert not used, f"{path} is to use Area and LineField in place of {used}"


@pytest.mark.parametrize("char", [*CONTROLS, "\u2028", "\u2029", "\udce9"])
def test_what_is_not_seen_is_shown_in_a_cell(char):
    shown = visible(f"a{char}b")
    assert len(shown) == 3
    assert shown[1].isprintable()


class Fields(App[None]):
    def __init__(self, kind, text):
        super().__init__()
        self._make = lambda: kind(text)

    def compose(self):
        self.field = self._make()
        yield self.field


def unseen(text):
    return {one for one in text if one != "\n" and not one.isprintable()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Area, LineField])
async def test_control_characters_are_shown_and_kept(kind):
    given = "ab\x1b]52;c\x07\x9b\u202ex"
    app = Fields(kind, given)
    async with driven(app, size=(40, 6)) as pilot:
        shown = pilot.text
        assert "ab␛]52;c␇��x" in shown
        assert not unseen(shown)
        field = app.field
        # The cursor goes over what is shown, a cell each, and takes away what it stands behind.
        await pilot.press("home", *["right"] * 3, "backspace")
        kept = field.text if isinstance(field, Area) else field.value
        assert kept == given.replace("\x1b", "")
        await pilot.click(field, offset=(field.gutter.left + 8, field.gutter.top))
        await pilot.press("delete")
        kept = field.text if isinstance(field, Area) else field.value
        assert kept == given.replace("\x1b", "").replace("\x9b", "")
        assert not unseen(pilot.text)


async def test_a_long_line_of_control_characters_is_broken_where_it_is_shown():
    app = Fields(Area, "\x1b" * 100)
    async with driven(app, size=(40, 12)) as pilot:
        shown = [line.count("␛") for line in pilot.text.split("\n")]
        assert sum(shown) == 100
        assert max(shown) <= 40


@pytest.mark.parametrize("widget", [Static, OptionList, Input, TextArea], ids=lambda one: one.__name__)
async def test_no_widget_at_all_draws_what_a_terminal_would_obey(widget):
    given = f"{EVIL}{CONTROLS}\u2028\u2029"

    class Whole(EdgechatApp):
        def get_default_screen(self):
            from textual.screen import Screen

            return Screen()

        def compose(self):
            yield widget(given, markup=False) if widget is Static else widget(given)

        async def close_session(self): ...

    async with driven(Whole(), size=(200, 6)) as pilot:
        assert not unseen(pilot.text)
        pilot.shows("end")


@pytest.fixture
def terminal(tmp_path):
    with Terminal(tmp_path) as opened:
        yield opened


@needs_tmux
def test_nothing_gets_out_of_where_text_is_edited(tmp_path, terminal):
    model = scripted.write(tmp_path / "model.gguf", token_ms=2, reply="Understood.")
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / f"notes {EVIL}.txt").write_text("milk")
    asyncio.run(_hold(terminal.home, f"Asked before: {EVIL}"))
    config = terminal.home / "config"
    config.mkdir(parents=True)
    (config / "settings.toml").write_text(f"system = {json.dumps('Be brief. ' + EVIL)}\n")

    terminal.ask(f"cd '{folder}'")
    terminal.run([*scripted.COMMAND, "-m", str(model)])
    terminal.until("stays on this machine")
    terminal.type("@n")  # a file's name is completed
    terminal.until("› notes")
    terminal.press("Tab")
    terminal.until("notes ␛]52;c;aGFja2Vk␛")
    terminal.press("C-u")
    terminal.until(lambda: "notes" not in terminal.screen)
    terminal.press("Up")  # an old question is brought back
    terminal.until("Asked before: ␛]52;c;aGFja2Vk␛")
    terminal.press("End", "Enter")
    terminal.until("Understood.")
    terminal.until("tok/s")
    terminal.press("Tab")  # a turn is edited
    terminal.until("c Copy")
    terminal.press("Up", "e")
    terminal.until("editing")
    terminal.until("Asked before: ␛]52;c;aGFja2Vk␛")
    terminal.press("Escape", "F4")  # a system prompt is edited
    terminal.until("Be brief. ␛]52;c;aGFja2Vk␛")
    terminal.press("Escape")
    terminal.until(lambda: "Be brief. ␛" not in terminal.screen)
    terminal.press("C-p")  # a command is looked for
    terminal.until("Search for commands")
    terminal.paste(EVIL)
    terminal.until("end")
    terminal.press("Escape")
    terminal.press("C-q")
    terminal.until("left with 0")
    assert hostile(terminal.raw) == []


async def _hold(home, question):
    (home / "data").mkdir(parents=True)
    store = await Store.open(home / "data" / "chats.db")
    said = [{"role": "user", "content": question}, {"role": "assistant", "content": "So it was."}]
    new = parse_chat(json.dumps({"messages": said}))
    await store.add(new.chat, new.turns)
    await store.close()
