"""Consent: what an answer is for, how long it holds, and where it is kept."""

import asyncio
import json
import os
import stat

import msgspec
import pytest

from edgechat.base.errors import StoreError
from edgechat.tools import consent
from edgechat.tools.consent import AskingPermission, ConsentStore, NamedPermission, Question, consents_path
from edgechat.tools.tool import ToolSpec

READ = ToolSpec(server="disk", name="read", description="Reads a file.")
WRITE = msgspec.structs.replace(READ, name="write", description="Writes a file.")


class User:
    """Answers questions, and remembers them."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    async def __call__(self, question):
        self.asked.append(question)
        await asyncio.sleep(0)
        return self.answers.pop(0)


@pytest.fixture(params=["file", "memory"])
def store(request):
    return ConsentStore(consents_path() if request.param == "file" else None)


@pytest.mark.parametrize(
    ("answer", "first", "again", "elsewhere"),
    [
        ("once", True, None, None),
        ("no", False, None, None),
        ("chat", True, True, None),
        ("always", True, True, True),
        ("never", False, False, False),
    ],
)
async def test_answers(store, answer, first, again, elsewhere):
    user = User(answer)
    assert await AskingPermission(store, "c1", user)(READ, '{"path":"x"}') == first
    assert user.asked == [Question(tool=READ, arguments='{\n  "path": "x"\n}')]
    assert (await store.standing(READ, "c1")).allowed == again
    assert (await store.standing(READ, "c2")).allowed == elsewhere
    assert (await store.standing(WRITE, "c1")).allowed is None
    if again is not None:
        assert await AskingPermission(store, "c1", user)(READ, "{}") == again
        assert len(user.asked) == 1


async def test_a_changed_tool_asks_anew_and_shows_how(store):
    await store.keep(READ, "always", "c1")
    schema = '{"type": "object", "properties": {"to": {"type": "string"}}}'
    changed = msgspec.structs.replace(READ, description="Reads a file.\nSends it away.", schema=schema)
    user = User("no")
    assert not await AskingPermission(store, "c1", user)(changed, "{}")
    lines = user.asked[0].changed.splitlines()
    assert " Reads a file." in lines
    assert "+Sends it away." in lines
    assert '+    "to": {' in lines
    assert (await store.standing(READ, "c1")).allowed  # as it was


async def test_never_outlives_a_change(store):
    await store.keep(READ, "chat", "c1")
    await store.keep(READ, "never", "c1")
    assert (await store.standing(msgspec.structs.replace(READ, description="New."), "c1")).allowed is False
    assert await store.withdraw("disk", "read") == 1
    assert (await store.standing(READ, "c1")).allowed is None


async def test_answers_go_with_their_chat_and_their_server(store):
    await store.keep(READ, "chat", "c1")
    await store.keep(READ, "chat", "c2")
    await store.keep(WRITE, "always", "c1")
    await store.forget_chats(["c1", "unknown"])
    assert [(one.tool, one.chat_id) for one in await store.given()] == [("read", "c2"), ("write", None)]
    assert await store.withdraw("disk") == 2
    assert list(await store.given()) == []


async def test_calls_at_the_same_time_ask_one_after_the_other(store):
    user = User("chat", "no")
    permission = AskingPermission(store, "c1", user)
    calls = [(READ, '{"n":1}'), (READ, '{"n":2}'), (WRITE, "{}")]
    assert await asyncio.gather(*(permission(*call) for call in calls)) == [True, True, False]
    assert [question.tool.name for question in user.asked] == ["read", "write"]


async def test_what_is_harmless_is_not_asked_about(store):
    harmless = msgspec.structs.replace(READ, harmless=True)
    assert await AskingPermission(store, "c1", User())(harmless, "{}")


async def test_named_permission():
    for names, allowed in [
        (["disk"], [True, True]),
        (["disk/read"], [True, False]),
        (["disk__write"], [False, True]),
        (["read", "dis", ""], [False, False]),
    ]:
        permission = NamedPermission(names)
        assert [await permission(READ, "{}"), await permission(WRITE, "{}")] == allowed


async def test_the_file_is_the_users_alone_and_survives():
    path = consents_path()
    await ConsentStore(path).keep(READ, "always", "c1")
    assert os.name != "posix" or stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (await ConsentStore(path).standing(READ, "other")).allowed
    assert json.loads(path.read_bytes())[0]["pin"] == READ.pin


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b'[{"server":"disk","tool":"read"}]', b"\xff"])
async def test_a_damaged_file_asks_again(damage):
    path = consents_path()
    store = ConsentStore(path)
    await store.keep(READ, "always", "c1")
    path.write_bytes(damage)
    assert (await store.standing(READ, "c1")).allowed is None
    await store.keep(READ, "always", "c1")
    assert (await store.standing(READ, "c1")).allowed


async def test_answers_are_bounded(monkeypatch):
    monkeypatch.setattr(consent, "MOST_ANSWERS", 3)
    store = ConsentStore(consents_path())
    for n in range(5):
        await store.keep(msgspec.structs.replace(READ, name=f"t{n}"), "always", "c1")
    assert [one.tool for one in await store.given()] == ["t2", "t3", "t4"]


async def test_a_call_is_not_made_if_the_answer_cannot_be_kept(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    store = ConsentStore(blocked / "consents.json")
    with pytest.raises(StoreError, match="cannot be saved"):
        await AskingPermission(store, "c1", User("always"))(READ, "{}")
    assert await AskingPermission(store, "c1", User("once"))(READ, "{}")
