"""Streams that do not go well: clients that leave early or do not read, and what comes after a stream."""

import asyncio
import json

import pytest

from edgechat.base.errors import EngineCrashed
from edgechat.engine.types import Delta
from edgechat.server import connection
from tests.server.fakes import FakeModels, serving
from tests.server.raw import Raw

PATH = "/v1/chat/completions"


STREAMED = b'{"messages": [{"role": "user", "content": "hi"}], "stream": true}'


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


@pytest.mark.slow
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


@pytest.mark.slow
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


async def test_a_connection_goes_on_after_a_stream_whatever_its_end():
    models = FakeModels(["one"], ["two", EngineCrashed("It died.")], ["three"])
    async with serving(models) as url:
        raw = await Raw.to(url)
        for _ in range(2):
            await raw.ask("POST", PATH, body=STREAMED)
        for word in ("one", "two"):
            assert (await raw.head())[0] == 200
            assert word in str(await events(raw))
        await raw.ask("POST", PATH, body=STREAMED)
        await raw.head()
        assert (await events(raw))[-1] == "data: [DONE]"
