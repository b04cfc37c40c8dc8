"""Bodies that are large: what is held of them, and what is decoded, has a bound."""

import asyncio
import json
import threading

import pytest

from edgechat.server import exchange
from edgechat.server.protocol import body
from edgechat.server.protocol.body import parse_body
from tests.server.fakes import FakeModels, serving
from tests.server.raw import Raw, ask

CHAT = b'{"model": "default", "messages": [{"role": "user", "content": "hi"}]}'
PATH = "/v1/chat/completions"


async def test_all_bodies_together_have_a_bound(monkeypatch, url):
    monkeypatch.setattr(exchange, "BODIES_BYTES", 1000)
    monkeypatch.setattr(exchange, "FREE_BYTES", 100)
    held = await Raw.to(url)
    await held.ask("POST", PATH, body=b" " * 900, Content_Length="1000")
    while exchange.BodyMemory.total < 800:
        await asyncio.sleep(0.01)
    status, headers, _ = await ask(url, "POST", PATH, body=b" " * 300 + CHAT)
    assert (status, headers["retry-after"]) == (429, "1")
    assert (await ask(url, "POST", PATH, body=CHAT))[0] == 200  # short ones are taken all the same
    held.writer.write(b" " * 100)
    assert (await held.answer())[0] == 400
    assert (await ask(url, "POST", PATH, body=b" " * 300 + CHAT))[0] == 200
    assert exchange.BodyMemory.total == 0


@pytest.mark.parametrize(
    "value",
    [
        b'"prompt": [' + b"[1]," * 2**17 + b"[1]]",
        b'"prompt": [' + b"[[{}]]," * 2**16 + b"[1]]",
        b'"logit_bias": {' + b'"1":0,' * 2**17 + b'"1":0}',
        b'"prompt": [' + b"1," * 2**20 + b"1,1]",
    ],
)
async def test_what_no_context_holds_is_not_decoded(value, url):
    status, _, said = await ask(url, "POST", "/v1/completions", body=b"{" + value + b"}")
    assert (status, said["error"]["type"]) == (413, "invalid_request_error")


async def test_schemas_are_measured_before_anything_is_made_of_them():
    large = {"type": "object", "const": "text" * 2**14}
    function = {"name": "f", "parameters": large}
    tools = [{"type": "function", "function": function | {"name": f"f{n}"}} for n in range(60)]
    format_ = {"type": "json_schema", "json_schema": {"name": "x", "schema": large | {"x": "y" * 2**17}}}
    for field, said in (("tools", tools), ("response_format", format_)):
        body = json.loads(CHAT) | {field: said}
        models = FakeModels()
        async with serving(models) as url:
            status, _, told = await ask(url, "POST", PATH, body=json.dumps(body).encode())
        assert (status, told["error"]["param"], told["error"]["code"]) == (400, field, "invalid_schema")
        assert models.requests == []


async def test_a_large_body_is_decoded_while_others_go_on():
    goes_on = threading.Event()
    made = asyncio.ensure_future(parse_body(b" " * (body._LARGE + 1), lambda _: goes_on.wait(5)))
    await asyncio.sleep(0)
    goes_on.set()
    assert await made
