"""What goes wrong, as the client hears it, and in the line of its request."""

import asyncio

import msgspec
import pytest

from edgechat.base.errors import EngineCrashed, LoadFailed, ModelFileError
from edgechat.server.refusal import refusal_of
from tests.server.fakes import FakeModels, serving
from tests.server.raw import Raw, ask

CHAT = b'{"model": "default", "messages": [{"role": "user", "content": "hi"}]}'
STREAM = CHAT[:-1] + b', "stream": true}'


async def test_a_crash_is_told_without_a_path_of_the_server_and_in_the_line_of_a_broken_stream(caplog):
    caplog.set_level("INFO", "edgechat.server")
    crash = EngineCrashed("The engine died.", hint="The next message. Its log: /home/me/engine-1.log")
    async with serving(FakeModels([crash], ["So", crash])) as url:
        status, _, said = await ask(url, "POST", "/v1/chat/completions", body=CHAT)
        assert (status, said["error"]["code"]) == (503, "engine_crashed")
        raw = await Raw.to(url)
        await raw.ask("POST", "/v1/chat/completions", body=STREAM)
        assert (await raw.head())[0] == 200
        streamed = (await raw.reader.readuntil(b"engine_crashed")).decode()
        while len(caplog.messages) < 2:
            await asyncio.sleep(0.01)
    for told in (msgspec.json.encode(said).decode(), streamed):
        assert "The engine died. The next request starts it again." in told
        assert "/home/me" not in told
    assert caplog.messages[0].split()[1:4] == ["POST", "/v1/chat/completions", "503"]
    assert caplog.messages[1].endswith("scripted engine_crashed")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            ModelFileError("/home/me/my models/a.gguf may not be read.", hint="chmod u+r /home/me/a"),
            "a.gguf may",
        ),
        (ModelFileError(r"C:\Users\me\a.gguf is a folder."), "a.gguf is a folder. For details"),
        (LoadFailed("No backend loads from /home/me/lib."), "No backend loads from lib."),
    ],
)
def test_clients_are_told_no_folders_of_the_server(error, told):
    said = refusal_of(error).message
    assert said.startswith(told)
    assert "me/" not in said


async def test_the_line_of_a_request_says_that_its_client_has_gone(caplog):
    caplog.set_level("INFO", "edgechat.server")
    models = FakeModels(["So", 600.0])
    async with serving(models) as url:
        raw = await Raw.to(url)
        await raw.ask("POST", "/v1/chat/completions", body=STREAM)
        await raw.head()
        raw.close()
        while not caplog.messages:
            await asyncio.sleep(0.01)
    assert " 200 " in caplog.messages[0]
    assert caplog.messages[0].endswith("scripted client_gone")


async def test_a_fault_of_our_own_is_logged_and_told_without_details(caplog):
    async with serving(FakeModels(refuses=KeyError("what somebody asked"))) as url:
        status, _, said = await ask(url, "POST", "/v1/chat/completions", body=CHAT)
    assert (status, said["error"]["code"]) == (500, "fault")
    (record,) = [one for one in caplog.records if one.levelname == "ERROR"]
    assert record.name.startswith("edgechat.server")
    assert record.exc_info is not None
    assert record.exc_info[0] is KeyError
    assert "what somebody asked" not in record.getMessage() + str(said)
