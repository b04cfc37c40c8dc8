"""Streams that do not go well: clients that leave or do not read, errors early and late, long silence."""

import asyncio
import json

import pytest

from edgechat.base.errors import DoesNotFit, EngineCrashed, LoadFailed, ModelNotFound, RequestRefused
from edgechat.engine.types import Delta
from edgechat.server.http import connection, streams
from tests.server.fakes import FakeModels, finished, serving
from tests.server.raw import Raw, ask

PATH = "/v1/chat/completions"


def body(**more):
    return json.dumps({"model": "default", "messages": [{"role": "user", "content": "hi"}], **more}).encode()


STREAMED = body(stream=True)


async def events(raw):
    """Read a stream to its end; return its events, the JSON decoded, and its comments as text."""
    found = []
    while (size := int(await raw.reader.readline(), 16)) > 0:
        lines = (await raw.reader.readexactly(size + 2)).decode().strip().split("\n\n")
        found += [json.loads(line[6:]) if line.startswith("data: {") else line for line in lines if line]
    await raw.reader.readexactly(2)
    return found


async def until(condition, seconds=60.0):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [True, False])
async def test_who_leaves_stops_the_generation(stream):
    models = FakeModels(["x", *[step for _ in range(1000) for step in (0.01, "x")]])
    async with serving(models) as url:
        raw = await Raw.to(url)
        await raw.ask("POST", PATH, body=body(stream=stream, n=2))
        await until(lambda: len(models.requests) == 2)
        if stream:
            await raw.reader.readuntil(b'"content":"x"')
        raw.close()
        await until(lambda: len(models.stopped) == 2, 0.5)
        assert (await ask(url))[0] == 200


async def test_who_leaves_while_the_model_loads_is_forgotten():
    models = FakeModels()
    models.load_seconds = 0.2
    async with serving(models) as url:
        raw = await Raw.to(url)
        await raw.ask("POST", PATH, body=STREAMED)
        await until(lambda: models.places)
        raw.close()
        await asyncio.sleep(0.4)
    assert models.requests == []
    assert models.metrics == [("/v1/chat/completions", 499, None)]


async def test_who_does_not_read_is_dropped(monkeypatch):
    monkeypatch.setattr(connection, "UNREAD_SECONDS", 0.3)
    much = Delta("", "x" * 100_000, False, 1)
    models = FakeModels([step for _ in range(2000) for step in (much, 0.001)])
    async with serving(models) as url:
        raw = await Raw.to(url)
        raw.writer.transport.pause_reading()
        await raw.ask("POST", PATH, body=STREAMED)
        await until(lambda: models.stopped, 5.0)
        other = await Raw.to(url)  # nobody else notices
        await other.ask()
        assert (await other.answer())[0] == 200


async def test_what_goes_wrong_before_the_first_word_is_a_status():
    for error, status, code, again in (
        (ModelNotFound("No such model.", hint="Pull it."), 404, "model_not_found", None),
        (DoesNotFit("Too large."), 503, "does_not_fit", None),
        (LoadFailed("Broken."), 503, "load_failed", None),
        (EngineCrashed("It died."), 503, "engine_crashed", "1"),
        (RequestRefused("It died twice."), 422, "request_refused", None),
        (ValueError("a secret"), 500, "fault", None),
    ):
        for stream in (True, False):
            for models in (FakeModels(refuses=error), FakeModels([error])):
                async with serving(models) as url:
                    got, headers, said = await ask(url, "POST", PATH, body=body(stream=stream))
                    assert (got, said["error"]["code"], headers.get("retry-after")) == (status, code, again)
                    assert "secret" not in said["error"]["message"]
                    assert models.metrics == [
                        ("/v1/chat/completions", status, None if models.refuses else "scripted")
                    ]


async def test_what_goes_wrong_later_is_an_event_at_the_end():
    for error, code in ((EngineCrashed("It died."), "engine_crashed"), (ValueError("a secret"), "fault")):
        async with serving(FakeModels(["Hel", "lo", 0.01, error])) as url:
            raw = await Raw.to(url)
            await raw.ask("POST", PATH, body=STREAMED)
            assert (await raw.head())[0] == 200
            told = await events(raw)
            assert "".join(one["choices"][0]["delta"].get("content", "") for one in told[:-1]) == "Hello"
            assert told[-1]["error"]["code"] == code
            assert "[DONE]" not in str(told)
            await raw.ask()  # the connection is still good
            assert (await raw.answer())[0] == 200


async def test_an_answer_that_the_stopping_server_cut_is_an_error_too():
    models = FakeModels(["Hel", finished("cancelled")])
    async with serving(models) as url:
        raw = await Raw.to(url)
        await raw.ask("POST", PATH, body=STREAMED)
        await raw.head()
        assert (await events(raw))[-1]["error"]["code"] == "stopped"
        assert (await ask(url, "POST", PATH, body=body()))[0] == 503


async def test_silence_is_filled(monkeypatch):
    monkeypatch.setattr(streams, "KEEP_ALIVE", 0.05)
    models = FakeModels([0.12, "Hi"])
    models.load_seconds = 0.12
    async with serving(models) as url:
        raw = await Raw.to(url)
        await raw.ask("POST", PATH, body=STREAMED)
        assert (await raw.head())[0] == 200
        told = await events(raw)
    assert told[0] == ": waiting"
    assert told.count(": waiting") >= 3
    assert told[-1] == "data: [DONE]"


async def test_words_come_as_they_are_written():
    said = {letter: asyncio.Event() for letter in "abcdefgh"}
    models = FakeModels([step for letter, event in said.items() for step in (letter, event)])
    async with serving(models) as url:
        raw = await Raw.to(url)
        await raw.ask("POST", PATH, body=STREAMED)
        for letter, event in said.items():  # none waits for the next one
            await raw.reader.readuntil(f'"content":"{letter}"'.encode())
            event.set()
        await raw.reader.readuntil(b"[DONE]")


async def test_two_questions_on_one_connection():
    models = FakeModels(["one"], ["two"])
    async with serving(models) as url:
        raw = await Raw.to(url)
        await raw.ask("POST", PATH, body=STREAMED)
        await raw.ask("POST", PATH, body=STREAMED)
        for word in ("one", "two"):
            await raw.head()
            assert word in str(await events(raw))
