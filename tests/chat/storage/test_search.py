import asyncio
import sqlite3

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgechat.base.text import one_line
from edgechat.chat.conversation import Conversation
from edgechat.chat.messages import title_of
from edgechat.chat.records import Attachment, Chat, Turn
from edgechat.chat.storage.migrations import MIGRATIONS
from edgechat.chat.storage.search import parse_query, snippet
from edgechat.chat.storage.store import Store
from tests.counting import calls_of
from tests.fakes import FakeEngine, send
from tests.properties import examples


async def put(store, *texts, title="A title", **fields):
    """Leave a chat whose turns have these texts; return its id."""
    name = f"{len(await store.chats(1000)):08x}"
    chat = Chat(id=name, title=title, model="m", date="d", created_at=1.0, updated_at=1.0)
    for number, text in enumerate(texts):
        turn = Turn(
            id=f"{name}-{number}",
            chat_id=name,
            role="assistant" if number % 2 else "user",
            content=text,
            parent_id=f"{name}-{number - 1}" if number else None,
            created_at=float(number),
            **fields,
        )
        await store.add_turn(turn, chat=None if number else chat)
    return name


async def found(store, typed, **options):
    return [hit.turn_id for hit in await store.search(typed, **options)]


def strong(hit):
    return [hit.snippet[start:end] for start, end in hit.marks]


async def test_every_word_must_occur_and_the_last_may_be_half_a_word(store):
    name = await put(store, "The quick brown fox", "jumps over the lazy dog", "A quick answer")
    assert await found(store, "quick brown") == [f"{name}-0"]
    assert await found(store, "quick bro") == [f"{name}-0"]
    assert await found(store, "qui brown") == []
    assert await found(store, "fox dog") == []
    assert sorted(await found(store, "QUICK")) == [f"{name}-0", f"{name}-2"]
    assert await found(store, "   ") == []


async def test_the_words_are_marked_in_one_line(store):
    await put(store, "so " * 200 + "the Crème\n\n\x1b[31m Brûlée\x07 is served " + "so " * 200)
    (hit,) = await store.search("creme brul")
    assert strong(hit) == ["Crème", "Brûl"]
    assert "\n" not in hit.snippet
    assert "\x1b" not in hit.snippet
    assert hit.snippet.startswith("…so so")
    assert len(hit.snippet) <= 161


async def test_best_first_and_of_equals_the_newest(store):
    many = await put(store, "a pelican", "x", "pelican pelican pelican", "y", "a pelican")
    ids = await found(store, "pelican")
    assert ids == [f"{many}-2", f"{many}-4", f"{many}-0"]


async def test_titles_come_first_and_a_chat_of_one_comes_once(store):
    named = await put(store, "What about it?", title="The pelican brief")
    other = await put(store, "pelican pelican", title="Birds")
    both = await put(store, "a long talk about a pelican and more", title="Pelican again")
    hits = await store.search("pelican")
    assert [(hit.chat.id, hit.turn_id) for hit in hits] == [
        (both, f"{both}-0"),
        (named, ""),
        (other, f"{other}-0"),
    ]
    assert (hits[1].snippet, strong(hits[1])) == ("The pelican brief", ["pelican"])


async def test_one_chat_may_be_searched_alone(store):
    one, two = await put(store, "a pelican"), await put(store, "a pelican", title="Pelican")
    assert await found(store, "pelican", chat_id=one) == [f"{one}-0"]
    assert await found(store, "pelican", chat_id=two) == [f"{two}-0"]
    assert await found(store, "pelican", chat_id="ffff") == []
    assert len(await found(store, "pelican", limit=1)) == 1


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("今日は日本の天気がいい", "日本"),
        ("今日は日本の天気がいい", "天"),
        ("안녕하세요 여러분", "하세"),
        ("ราคาเท่าไหร่", "เท่า"),
        ("I write C++ and C# at work", "c++"),
        ("a -> b", "->"),
        ("it is 50% off", "50%"),
        ("a smile 😀 here", "😀"),
        ("see snake_case_name there", "snake_case"),
        ("don't panic", "don't"),
        ("an x here", "x"),
        ("go on", "go"),
        ("file.tar.gz is big", "tar.gz"),
        ("Straße nach ÅLESUND", "alesund"),
        ("e\u0301te\u0301 is summer", "été"),
        ("été is summer", "e\u0301t"),
        ("Ελλάδα", "ελλάδ"),
        ("日本 and python", "python 日本"),
    ],
)
async def test_what_is_found(store, text, typed):
    name = await put(store, "something else, c and d", text)
    hits = await store.search(typed)
    assert [hit.turn_id for hit in hits] == [f"{name}-1"]
    assert hits[0].marks


@pytest.mark.parametrize("typed", ["C++", "%", "日木", "->>", "c#"])
async def test_what_is_not_found(store, typed):
    await put(store, "C is not 日本, - > and 50 c")
    assert await found(store, typed) == []


SYNTAX = [
    '"',
    '"a',
    "a*",
    "*",
    "-a",
    "a AND",
    "NOT a",
    "NEAR(a b",
    "content:a",
    "^a",
    "(a",
    "a OR b",
    "''",
    "\\",
    "~",
]


@pytest.mark.parametrize("typed", SYNTAX)
async def test_nothing_that_is_typed_is_syntax(store, typed):
    name = await put(store, f"before {typed} behind")
    assert await found(store, typed) in ([f"{name}-0"], [])
    if any(letter.isalpha() for letter in typed):
        assert await found(store, typed) == [f"{name}-0"]


@pytest.mark.slow
def test_whatever_is_typed_is_answered():
    async def search(typed):
        store = await Store.in_memory()
        await put(store, *typed, "日本 C++ a")
        for one in typed:
            for hit in await store.search(one):
                assert all(0 <= start < end <= len(hit.snippet) for start, end in hit.marks)
                assert one_line(hit.snippet) == hit.snippet
        await store.close()

    @settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), min_size=1, max_size=4))
    def holds(typed):
        asyncio.run(search(typed))

    holds()


async def test_lone_surrogates_and_long_lines_are_answered(store):
    await put(store, "x")
    assert await found(store, "\udce4 half") == []
    assert await found(store, "word " * 10_000) == []
    assert await found(store, "w" * 10_000) == []


async def test_attachments_are_searched(store):
    files = (Attachment("notes.txt", "the pelican\nflies"), Attachment("b.md", "other"))
    name = await put(store, "What is this?", attachments=files)
    assert [(hit.turn_id, hit.snippet, strong(hit)) for hit in await store.search("flies pel")] == [
        (f"{name}-0", "notes.txt: the pelican flies", ["pel", "flies"])
    ]
    assert await found(store, "notes") == [f"{name}-0"]
    await store.delete_turn(f"{name}-0")
    assert await found(store, "pelican") == []


@pytest.mark.slow
async def test_a_reply_is_found_when_it_does_not_stream_any_more(store, conversation):
    async for _ in send(conversation, FakeEngine(["a peli", 0.5, "can ", 0.1, "flies"]), "Go."):
        assert await found(store, "pelican") == []
    assert await found(store, "pelican flies") == [conversation.turns[-1].id]


async def test_a_reply_that_a_dead_program_left_is_found(tmp_path, running):
    path = tmp_path / "chats.db"
    store = await Store.open(path)
    name = await put(store, "Go.")
    reply = Turn(
        id="r",
        chat_id=name,
        role="assistant",
        content="",
        parent_id=f"{name}-0",
        state="streaming",
        created_at=1.0,
    )
    await store.add_turn(reply)
    store._db.execute("UPDATE turns SET content = 'a pelican', owner = NULL WHERE id = 'r'")
    assert await found(store, "pelican") == []
    await store.close()
    store = running(await Store.open(path))
    assert await found(store, "pelican") == ["r"]


async def test_system_prompts_are_not_searched(store):
    await Conversation(store, "guide", system="a pelican").ask("Hi")
    assert await found(store, "pelican") == []


async def test_the_index_outlives_a_vacuum(store):
    names = [await put(store, f"word{number} pelican") for number in range(20)]
    await store.delete(*names[:15])
    store._db.execute("VACUUM")
    new = await put(store, "word99 pelican")
    assert await found(store, "word17") == [f"{names[17]}-0"]
    assert await found(store, "word99") == [f"{new}-0"]
    assert len(await found(store, "pelican")) == 6
    # An index whose entries went wrong says so when all of them are taken out.
    await store.delete(*(chat.id for chat in await store.chats()))
    assert store._db.execute("SELECT count(*) FROM said WHERE said MATCH 'pelican'").fetchone() == (0,)


async def test_the_chats_of_the_second_schema_are_found(tmp_path, running):
    path = tmp_path / "chats.db"
    with sqlite3.connect(path) as db:
        for script in MIGRATIONS[:2]:
            db.executescript(script)
        db.execute("PRAGMA user_version = 2")
        db.execute(
            "INSERT INTO conversations VALUES ('aaaaaaaa', 'Old', 'guide', '2026-08-01', 1.0, 1.0, 'run')"
        )
        columns = "id, conversation_id, parent_id, position, role, content, state, created_at, updated_at"
        row = f"INSERT INTO turns ({columns}) VALUES"
        db.execute(f"{row} ('s', 'aaaaaaaa', NULL, 0, 'system', 'Be a pelican', 'complete', 1.0, 1.0)")
        db.execute(f"{row} ('q', 'aaaaaaaa', 's', 1, 'user', 'Which bird?', 'complete', 1.0, 1.0)")
        db.execute(f"{row} ('a', 'aaaaaaaa', 'q', 2, 'assistant', 'A pelican.', 'complete', 1.0, 1.0)")
        db.execute(f"{row} ('b', 'aaaaaaaa', 'q', 3, 'assistant', 'A pelican, too', 'streaming', 1.0, 1.0)")
    store = running(await Store.open(path))
    (hit, _) = await store.search("pelican")
    assert sorted(await found(store, "pelican")) == ["a", "b"]
    assert (hit.chat.title, hit.chat.front, hit.chat.pinned, hit.chat.leaf) == ("Old", "run", False, None)
    conversation = await Conversation.load(store, "aaaaaaaa")
    assert [turn.id for turn in conversation.turns] == ["s", "q", "b"]
    await store.delete("aaaaaaaa")
    assert await found(store, "pelican") == []


def test_a_snippet_is_cut_where_most_words_are():
    words = parse_query("fox dog")
    text = "fox " + "so " * 100 + "a fox and a dog " + "so " * 100
    found = snippet(text, words)
    assert "a fox and a dog" in found.text
    assert found.n_words == 2
    assert snippet("nothing here", words) == snippet("nothing here", parse_query("x y z"))


@pytest.mark.parametrize("sign", ["\u0301", "a_", "[", "* ", "`", "a ", "a b c++ "])
def test_a_longer_text_takes_no_more_to_look_at(sign):
    def cost(n):
        text = "a" + sign * n
        return calls_of(
            lambda: (
                title_of(text),
                *(snippet(text, parse_query(typed)) for typed in ("a-b", "a b", "c++", "a.a.a.b")),
            )
        )

    cost(1)  # what is compiled once
    assert cost(100_000) < 1.1 * cost(1_000)
