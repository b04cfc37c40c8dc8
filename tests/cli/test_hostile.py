"""Names, titles, metadata and answers of strangers, in what every command prints."""

import asyncio
import json
from collections.abc import Callable

import pytest

from edgechat.base import paths
from edgechat.base.text import escaped_json, flat, one_line, printable
from edgechat.chat.records import Chat, Turn
from edgechat.chat.storage.store import Store, store_path
from edgechat.cli.main import app, translated
from tests import homes
from tests.cli.running import edgechat
from tests.hub import Fault
from tests.kit import Spec
from tests.kit.build import write

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured")]

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
CONTROLS = "".join(map(chr, [*range(9), *range(0x0B, 0x20), *range(0x7F, 0xA0)]))
EVIL = f"{CONTROLS}{BIDI}\u2028\u2029 \r\nerror: pwned\nnote: pwned\u2028error: pwned\u202egpj"
"""Everything that a terminal obeys or hides, and lines that would be taken for edgechat's own."""
NAMED = f"x{BIDI}y\u2028error: pwned"
"""The part of it that a file's name may have."""
CHAT = "1a2b3c4d5e6f"

Say = Callable[..., str]


@pytest.mark.parametrize("text", [EVIL, *CONTROLS, *BIDI, "\u2028", "\u2029", "\ud800"])
def test_no_way_of_showing_text_lets_anything_through(text):
    assert not unseen(printable(text))
    assert not unseen(escaped_json(json.dumps({"text": text}, ensure_ascii=False)))
    assert json.loads(escaped_json(json.dumps(text, ensure_ascii=False))) == text
    for shown in (flat(text), one_line(text)):
        assert shown.isprintable()


def test_prose_keeps_its_lines_and_its_letters():
    prose = "Schön\n\n\tשלום — 你好 👩‍👩‍👧 e\u0301\n"
    assert printable(prose) == prose


def unseen(text):
    return {one for one in text if one not in "\n\t" and not one.isprintable()} - {"\u200d"}


@pytest.fixture
def say(capfd):
    """Return a function that runs a command, looks at all it prints, and returns that."""

    def run(*words, ends=0, prose=False):
        capfd.readouterr()
        code = translated(lambda: app([*map(str, words)], prog_name="edgechat"))
        out, err = capfd.readouterr()
        assert code == ends, (out, err)
        harmless(out + err, may_fail=ends > 0, prose=prose)
        return out + err

    return run


def harmless(text, *, may_fail, prose=False):
    assert not unseen(text), text
    if prose:  # it keeps its lines
        return
    # In a sheet a long name may be broken, far to the right of where a line of edgechat's own begins.
    lines = [line.lstrip() for line in text.split("\n") if not line.startswith(" " * 5)]
    assert not [line for line in lines if line.startswith(("error: pwned", "note: pwned"))], text
    assert sum(line.startswith("error: ") for line in lines) <= may_fail, text


@pytest.fixture
def models(tmp_path, monkeypatch):
    """Leave a sound and a damaged model of a stranger; return the sound one."""
    user = tmp_path / "user"
    homes.settle(user, monkeypatch)
    said = {f"general.{one}": EVIL for one in ("name", "license", "license.name", "description", "author")}
    model = tmp_path / "model.gguf"
    write(Spec(overrides=said), model)
    own = paths.data_dir() / "models"
    homes.place(model, own / "tame.gguf")
    homes.place(model, own / f"{NAMED}.gguf")
    homes.place(model, own / "line\nerror: pwned.gguf")
    homes.in_hub(user, model, "a/good-GGUF", f"{NAMED}-Q4_0.gguf")
    homes.in_ollama(user, model, "x:1b")
    damaged = homes.place(model, own / f"damaged {NAMED}.gguf")
    damaged.write_bytes(model.read_bytes()[:5000])
    return homes.place(model, tmp_path / f"other {NAMED}\nerror: pwned" / f"else {NAMED}\nerror: pwned.gguf")


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_models(models, say, flags):
    assert "tame" in say("list", *flags)
    assert say("show", "tame", *flags)
    assert say("show", models, *flags)
    assert say("plan", models, *flags)
    assert say("doctor", *flags)
    for name in json.loads(say("list", "--json")):
        say("show", name["full_name"], *flags, ends=int(bool(name["damage"])))


def test_models_that_are_read_and_removed(models, say):
    assert "DAMAGED" in say("verify", ends=1)
    for name in json.loads(say("list", "--json")):
        say(
            "rm",
            name["full_name"],
            ends=2
            if name["place"] in ("own folder", "edgechat", "hub cache") and name["name"] != "guide"
            else 1,
        )
    say("import", models, ends=1)
    say("import", models, "--name", NAMED, ends=1)
    say("import", models, "--name", "mine")


@pytest.mark.parametrize("command", ["show", "rm", "verify", "plan", "pull", "import"])
def test_names_that_are_none(command, say):
    word = "a\nerror: pwned" if command == "import" else f"a{EVIL}".replace("\0", "")
    assert say(command, word, ends=1).startswith("error: ")


def test_a_name_that_is_none_for_a_run():
    run = edgechat("run", f"a{EVIL}".replace("\0", ""), "hi")
    assert run.returncode == 1
    harmless(run.stdout + run.stderr, may_fail=True)


@pytest.mark.parametrize(
    "words", [["{}"], ["chats", "{}"], ["list", "--{}"], ["run", "guide", "--seed", "{}"]]
)
def test_words_that_are_none(words):
    run = edgechat(*(word.format("pwn\nerror: pwned\u202e") for word in words))
    assert run.returncode == 2
    harmless(run.stdout + run.stderr, may_fail=True)


async def _hold():
    store = await Store.open(store_path())
    chat = Chat(id=CHAT, title=EVIL, model=f"/{EVIL}", date="2026-01-01", created_at=1.0, updated_at=1.0)
    turns = [
        Turn(id="q", chat_id=CHAT, role="user", content=f"Pelican? {EVIL}", created_at=1.0),
        Turn(id="a", chat_id=CHAT, role="assistant", content=EVIL, parent_id="q", created_at=2.0),
    ]
    await store.add(chat, turns)
    await store.close()


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_chats(say, tmp_path, flags):
    asyncio.run(_hold())
    assert CHAT[:4] in say("chats", *flags)
    assert CHAT[:4] in say("chats", "search", "pelican", *flags)
    assert "Pelican?" in say("chats", "show", CHAT, *flags, prose=True)
    say("chats", "export", CHAT, str(tmp_path / NAMED), *flags)


def test_chats_that_are_changed(say):
    asyncio.run(_hold())
    say("chats", "pin", CHAT)
    say("chats", "rm", CHAT, ends=2)
    say("chats", "rename", CHAT, f"New {EVIL}".replace("\0", ""))
    say("chats", "rm", CHAT, "--yes")
    say("chats", "show", f"zz\n{NAMED}", ends=1)


@pytest.mark.parametrize("status", [400, 403, 418])
def test_a_hubs_own_words(hub, hf_cache, say, status):
    hub.add("a/b-GGUF", {"b-Q4_0.gguf": b"GGUF"})
    words = "No. \x9b2J\x85error: pwned".encode("latin-1").decode("latin-1")
    hub.fail("api", Fault(status=status, headers={"X-Error-Message": words}))
    assert say("pull", "a/b-GGUF", ends=1).startswith("error: ")


@pytest.mark.parametrize("flags", [(), ("--json",), ("--screen-reader",)])
def test_an_answer(script, flags):
    path = script(reply=f"First.\n\nSecond {CONTROLS}{BIDI} third.\n")
    run = edgechat("run", path, "hi", "--no-store", *flags)
    assert run.returncode == 0, run
    harmless(run.stdout + run.stderr, may_fail=False)
    if not flags:
        assert "First.\n\nSecond" in run.stdout
