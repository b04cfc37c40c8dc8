"""Stored responses through OpenAI's own client: chains, references, and what becomes of them."""

import logging
import sqlite3
from contextlib import asynccontextmanager

import pytest

from edgechat.base.errors import EngineCrashed
from edgechat.chat.storage import responses
from edgechat.chat.storage.store import ResponseStore
from edgechat.engine.types import Message, ToolCall
from edgechat.server.protocol import responses_store
from tests import scripted
from tests.later import Later
from tests.server.dialects import RESPONSES, WEATHER
from tests.server.fakes import FakeModels, called, finished, thought
from tests.server.program import served
from tests.server.test_serving import server_says

openai = Later("openai")

TOOLS = RESPONSES.said(tools=[WEATHER])["tools"]
CALL = ToolCall("call_a", "weather", '{"place":"Rome"}')
TOLD = {"type": "function_call_output", "call_id": "call_a", "output": "Sunny."}
SCRIPTS = (
    [thought("Let me see."), called("weather", CALL.arguments, CALL.id), finished("tools")],
    ["It is sunny."],
    ["You are welcome."],
)
MESSAGES = (
    Message("user", "Weather?"),
    Message("assistant", "", "Let me see.", (CALL,)),
    Message("tool", "Sunny.", call_id="call_a"),
    Message("assistant", "It is sunny."),
    Message("user", "Thanks."),
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "chats.db"


@asynccontextmanager
async def client_of(models, path, **more):
    store = await ResponseStore.open(path)
    try:
        async with RESPONSES.client(models, store=store, **more) as client:
            yield client
    finally:
        await store.close()


@pytest.fixture
async def client(models, path):
    async with client_of(models, path) as client:
        yield client


async def ask(client, input="Hello", *, stream=False, **fields):
    """Return the response, of a stream the one that it ends with."""
    answer = await client.responses.create(model="default", input=input, stream=stream, **fields)
    return [event async for event in answer][-1].response if stream else answer


async def refused(asking, kind=None, match=None):
    """Return the error that must come of it."""
    with pytest.raises(kind or openai.BadRequestError, match=match) as caught:
        await asking
    return caught.value


def by_id(client):
    return client.responses.retrieve, client.responses.delete, client.responses.input_items.list


def texts(items):
    return [item.content[0].text for item in items]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chain_is_what_its_items_sent_together_are(path, stream):
    models = FakeModels(*SCRIPTS)
    async with client_of(models, path) as client:
        first = await ask(client, "Weather?", stream=stream, tools=TOOLS, instructions="Be brief.")
        second = await ask(client, [TOLD], stream=stream, previous_response_id=first.id, tools=TOOLS)
        third = await ask(client, "Thanks.", stream=stream, previous_response_id=second.id)
        sent = [{"role": "user", "content": "Weather?"}, *first.output, TOLD, *second.output]
        sent = [one if isinstance(one, dict) else one.model_dump(exclude_none=True) for one in sent]
        told = await ask(client, [*sent, {"role": "user", "content": "Thanks."}])
    assert models.requests[0].messages == (Message("system", "Be brief."), *MESSAGES[:1])
    assert models.requests[1].messages == MESSAGES[:3]
    assert models.requests[2].messages == models.requests[3].messages == MESSAGES
    assert (first.store, third.store) == (True, True)
    assert (first.previous_response_id, third.previous_response_id) == (None, second.id)
    assert told.output_text == third.output_text == "You are welcome."


async def test_a_stream_says_from_the_beginning_that_it_is_going_to_be_stored(path, client):
    stream = await client.responses.create(model="default", input="x", stream=True)
    responses = [event.response async for event in stream if hasattr(event, "response")]
    assert [response.store for response in responses] == [True, True, True]
    assert await client.responses.retrieve(responses[0].id) == responses[-1]


async def test_a_response_that_is_cut_can_be_continued(path):
    models = FakeModels(["It is", finished("length")], ["sunny."])
    async with client_of(models, path) as client:
        cut = await ask(client, max_output_tokens=2)
        await ask(client, "Go on.", previous_response_id=cut.id)
    assert cut.status == "incomplete"
    assert [message.content for message in models.requests[1].messages] == ["Hello", "It is", "Go on."]


async def test_a_conversation_can_branch(path, models, client):
    first = await ask(client, "One")
    for text in ("Two", "Three"):
        await ask(client, text, previous_response_id=first.id)
    sent = (request.messages for request in models.requests)
    asked = [[message.content for message in messages if message.role == "user"] for messages in sent]
    assert asked == [["One"], ["One", "Two"], ["One", "Three"]]


async def test_items_can_be_referred_to(path):
    models = FakeModels(*SCRIPTS)
    async with client_of(models, path) as client:
        first = await ask(client, "Weather?", tools=TOOLS)
        question = (await client.responses.input_items.list(first.id)).data[0]
        references = [{"type": "item_reference", "id": item.id} for item in (question, *first.output)]
        second = await ask(client, [*references, TOLD])
        # What is stored of it are the items themselves, not the references.
        await client.responses.delete(first.id)
        await ask(client, "Thanks.", previous_response_id=second.id)
        asking = ask(client, [*references, {"type": "item_reference", "id": "nowhere"}])
        assert (await refused(asking, openai.NotFoundError, "'nowhere' not found")).param == "input[3]"
    assert models.requests[1].messages == MESSAGES[:3]
    assert models.requests[2].messages == MESSAGES


async def test_the_tokens_of_a_continued_input_are_counted(path):
    async with client_of(FakeModels(["Hi."]), path) as client:
        first = await ask(client, "Hello")
        more = {"input": "More", "previous_response_id": first.id}
        counted = await client.responses.input_tokens.count(model="default", **more)
    assert counted.input_tokens == len("HelloHi.More")


async def test_a_response_comes_back_as_it_was_sent(path):
    async with client_of(FakeModels(*SCRIPTS), path) as client:
        first = await ask(client, "Weather?", tools=TOOLS, metadata={"a": "b"}, temperature=0.5)
        assert await client.responses.retrieve(first.id) == first
        assert (await refused(client.responses.retrieve(first.id, stream=True))).param == "stream"
        await client.responses.delete(first.id)
        for gone in by_id(client):
            await refused(gone(first.id), openai.NotFoundError, f"Response with id '{first.id}' not found")


async def test_the_own_input_is_listed_in_pages(path, client):
    items = [{"role": "user", "content": f"Number {number}"} for number in range(3)]
    items[1] |= {"role": "assistant", "id": "msg_own"}
    first = await ask(client, items)
    second = await ask(client, "Next", previous_response_id=first.id)
    listed = client.responses.input_items.list
    page = await listed(first.id, order="asc", limit=2)
    assert texts(page.data) == ["Number 0", "Number 1"]
    assert [item.content[0].type for item in page.data] == ["input_text", "output_text"]
    assert (page.data[1].id, page.has_more) == ("msg_own", True)
    latest = [item async for item in listed(first.id, limit=1)]
    assert texts(latest) == ["Number 2", "Number 1", "Number 0"]
    assert texts((await listed(second.id)).data) == ["Next"]
    for name, value in (("after", "nowhere"), ("limit", 0), ("order", "up")):
        assert (await refused(listed(first.id, **{name: value}))).param == name


async def test_pages_end_though_items_were_sent_with_the_same_id(path, client):
    items = [{"type": "message", "role": "user", "content": f"{n}", "id": "msg_1"} for n in range(5)]
    first = await ask(client, items)
    listed = client.responses.input_items.list(first.id, order="asc", limit=2)
    found = []
    async for item in listed:
        found.append(item)
        assert len(found) <= len(items)
    assert texts(found) == ["0", "1", "2", "3", "4"]
    assert found[0].id == "msg_1"


async def test_store_false_stores_nothing(path, client):
    first = await ask(client, store=False)
    assert first.store is False
    error = await refused(ask(client, previous_response_id=first.id))
    assert (error.code, error.param) == ("previous_response_not_found", "previous_response_id")
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM responses").fetchone() == (0,)


async def test_a_response_that_fails_is_not_stored(path):
    async with client_of(FakeModels(["It is", EngineCrashed("It crashed.")]), path) as client:
        failed = await ask(client, stream=True)
        assert (failed.status, failed.store) == ("failed", False)
        await refused(client.responses.retrieve(failed.id), openai.NotFoundError)


async def test_a_chain_whose_beginning_is_gone_says_so(path, client):
    first = await ask(client)
    second = await ask(client, previous_response_id=first.id)
    await client.responses.delete(first.id)
    told = f"beginning .*{first.id}.* is no longer stored"
    error = await refused(ask(client, previous_response_id=second.id), match=told)
    assert error.code == "previous_response_not_found"
    assert (await client.responses.retrieve(second.id)).id == second.id


async def test_a_conversation_that_is_too_long_is_refused(path, monkeypatch, client):
    monkeypatch.setattr(responses, "CHAIN_BYTES", 500)
    first = await ask(client, "x" * 400)
    error = await refused(ask(client, previous_response_id=first.id))
    assert error.code == "context_length_exceeded"


async def test_an_item_cannot_be_multiplied_by_references(path, monkeypatch, client):
    await ask(client, [{"role": "user", "content": "x" * 400, "id": "msg_long"}])
    monkeypatch.setattr(responses_store, "CHAIN_BYTES", 1000)
    reference = {"type": "item_reference", "id": "msg_long"}
    await ask(client, [reference] * 2)
    assert (await refused(ask(client, [reference] * 3))).code == "context_length_exceeded"


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_a_database_that_cannot_be_written_costs_no_answer(path, monkeypatch, caplog, stream, client):
    monkeypatch.setattr("edgechat.chat.storage.store._RESPONSES_BUSY_MS", 100)
    with sqlite3.connect(path) as other:
        other.execute("BEGIN IMMEDIATE")
        with caplog.at_level(logging.WARNING):
            answer = await ask(client, stream=stream)
        assert (answer.output_text, answer.status, answer.store) == ("Hello there.", "completed", False)
        assert "could not be stored. Another program has locked" in caplog.text
    assert (await ask(client, stream=stream)).store is True


async def test_a_full_disk_costs_no_answer(small_disk, caplog):
    async with client_of(FakeModels(), small_disk / "chats.db") as client:
        first = await ask(client)
        answer = await ask(client, "x" * 4 * 2**20)  # twice the disk
        assert (answer.output_text, answer.store) == ("Hello there.", False)
        assert "could not be stored. The disk is full" in caplog.text
        assert (await ask(client, previous_response_id=first.id)).store is True


async def test_a_database_that_cannot_be_read_is_told_without_its_path(path, client):
    first = await ask(client)
    with sqlite3.connect(path) as other:
        other.execute("DROP TABLE response_items")
    error = await refused(ask(client, previous_response_id=first.id), openai.InternalServerError)
    assert (error.status_code, error.code) == (503, "store_unavailable")
    assert str(path.parent) not in error.message


async def test_without_the_option_it_is_named():
    async with RESPONSES.client(FakeModels()) as client:
        answer = await ask(client, store=True)
        assert answer.store is False
        for gone in by_id(client):
            error = await refused(gone(answer.id), openai.NotFoundError, "--store-responses")
            assert error.type == "invalid_request_error"
        continued = {"previous_response_id": answer.id}
        await refused(ask(client, **continued), match="--store-responses")
        counting = client.responses.input_tokens.count(model="default", **continued)
        await refused(counting, match="--store-responses")


async def test_strict_refuses_to_store_only_without_the_option(path):
    async with client_of(FakeModels(), path, strict=True) as client:
        assert (await ask(client, store=True)).store is True
    assert (await RESPONSES.refused(on={"strict": True}, store=True)).param == "store"


@pytest.mark.slow
def test_the_program_continues_after_a_restart(tmp_path):
    script = scripted.write(tmp_path / "default.gguf", reply="Hello there.")
    ids, cached = [], []
    for _ in range(2):
        with served(script, "--store-responses", home=tmp_path / "home") as server:
            client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0)
            for _ in range(2):
                sent = {"input": "Hello", "previous_response_id": ids[-1] if ids else None}
                answer = client.responses.create(model="default", **sent)
                ids.append(answer.id)
                cached.append(answer.usage.input_tokens_details.cached_tokens)
            assert server.stop() == (0, server_says())
    # The second and the fourth answer find the conversation before them in the prefix cache.
    assert cached[0] == cached[2] == 0
    assert 0 < cached[1] < cached[3]
