"""Images through the clients of all protocols: what reaches the engine of a model that sees, or does not."""

import base64
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic
from ollama import AsyncClient, ResponseError
from openai import APIStatusError, AsyncOpenAI, BadRequestError, InternalServerError

from edgechat.base.images.image import PLACE
from edgechat.base.images.library import digest_of
from edgechat.engine.types import Message
from edgechat.server.media.request_media import RequestMedia
from edgechat.server.protocol.decoding import UNREAD
from edgechat.server.protocol.media import MARK
from tests.base.images.files import encoded, quadrants
from tests.server.fakes import KEY, FakeModels, serving
from tests.server.raw import ask

PNG, JPEG = encoded(quadrants(), "PNG"), encoded(quadrants(20, 10), "JPEG")
PNG_TEXT, JPEG_TEXT = (base64.b64encode(data).decode() for data in (PNG, JPEG))
PNG_URL, JPEG_URL = f"data:image/png;base64,{PNG_TEXT}", f"data:image/jpeg;base64,{JPEG_TEXT}"
Ask = Callable[[str, Any], Awaitable[None]]
"""Sends a request to a server."""


def openai(url):
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=60)


async def chat(url, messages):
    async with openai(url) as client:
        await client.chat.completions.create(model="default", messages=messages)


async def respond(url, items):
    async with openai(url) as client:
        await client.responses.create(model="default", input=items)


async def message(url, messages):
    async with AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0, timeout=60) as client:
        await client.messages.create(model="default", max_tokens=9, messages=messages)


async def ollama_chat(url, messages):
    client = AsyncClient(host=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=60)
    await client.chat(model="default", messages=messages)


def text_part(text):
    return {"type": "text", "text": text}


def url_part(url):
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


def block(data, kind="image/png"):
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}


CALL = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
SHOWN = [
    (
        chat,
        [
            {
                "role": "user",
                "content": [
                    text_part("This:"),
                    url_part(PNG_URL),
                    text_part("and this:"),
                    url_part(JPEG_URL),
                ],
            }
        ],
    ),
    (
        respond,
        [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "This:"},
                    {"type": "input_image", "image_url": PNG_URL, "detail": "auto"},
                    {"type": "input_text", "text": "and this:"},
                    {"type": "input_image", "image_url": JPEG_URL, "detail": "auto"},
                ],
            }
        ],
    ),
    (
        message,
        [
            {
                "role": "user",
                "content": [
                    text_part("This:"),
                    block(PNG_TEXT),
                    text_part("and this:"),
                    {"type": "image", "source": {"type": "url", "url": JPEG_URL}},
                ],
            }
        ],
    ),
]
RETURNED = [
    (
        chat,
        [
            {"role": "user", "content": "Look"},
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "a", "content": [text_part("See:"), url_part(PNG_URL)]},
        ],
    ),
    (
        respond,
        [
            {"role": "user", "content": "Look"},
            {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
            {
                "type": "function_call_output",
                "call_id": "a",
                "output": [
                    {"type": "input_text", "text": "See:"},
                    {"type": "input_image", "image_url": PNG_URL, "detail": "auto"},
                ],
            },
        ],
    ),
    (
        message,
        [
            {"role": "user", "content": "Look"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "a",
                        "content": [text_part("See:"), block(PNG_TEXT)],
                    }
                ],
            },
        ],
    ),
]
IDS = ["chat", "responses", "messages"]


@asynccontextmanager
async def seeing(tmp_path, **more):
    models = FakeModels(sees=True)
    async with serving(models, media=RequestMedia(tmp_path / "images"), **more) as url:
        yield url, models


async def asked(tmp_path, ask, sent, **more):
    """Ask; return what the engine got."""
    async with seeing(tmp_path, **more) as (url, models):
        await ask(url, sent)
    assert MARK not in repr(models.requests)
    return models.requests[-1]


def shown(message):
    """Return the images of a message, whose files are there."""
    for image in message.media:
        assert digest_of(Path(image.path).read_bytes()) == image.digest
    return [(image.digest, image.width, image.height) for image in message.media]


BOTH = [(digest_of(PNG), 64, 32), (digest_of(JPEG), 20, 10)]


@pytest.mark.parametrize(("ask", "sent"), SHOWN, ids=IDS)
async def test_images_stand_where_they_were_sent(tmp_path, ask, sent):
    last = (await asked(tmp_path, ask, sent)).messages[-1]
    assert last.content == f"This:{PLACE}and this:{PLACE}"
    assert shown(last) == BOTH


@pytest.mark.parametrize(("ask", "sent"), RETURNED, ids=IDS)
async def test_images_that_a_tool_returns(tmp_path, ask, sent):
    last = (await asked(tmp_path, ask, sent)).messages[-1]
    assert (last.role, last.content, last.call_id) == ("tool", f"See:{PLACE}", "a")
    assert shown(last) == BOTH[:1]


async def test_ollama_puts_images_before_the_text(tmp_path):
    sent = [{"role": "user", "content": "These?", "images": [PNG_TEXT, JPEG_TEXT]}]
    last = (await asked(tmp_path, ollama_chat, sent)).messages[-1]
    assert (last.content, shown(last)) == (f"{PLACE}{PLACE}These?", BOTH)

    async def generate(url, prompt):
        client = AsyncClient(host=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=60)
        await client.generate(model="default", prompt=prompt, images=[PNG])

    last = (await asked(tmp_path, generate, "This?")).messages[-1]
    assert (last.content, shown(last)) == (f"{PLACE}This?", BOTH[:1])
    assert (await asked(tmp_path, generate, "")).messages[-1].content == PLACE


async def test_tokens_of_images_are_counted(tmp_path):
    async with seeing(tmp_path) as (url, _), openai(url) as client:
        counted = await client.responses.input_tokens.count(model="default", input=SHOWN[1][1])
    assert counted.input_tokens == len(f"This:{PLACE}and this:{PLACE}")
    sent = SHOWN[2][1]
    async with seeing(tmp_path) as (url, _), AsyncAnthropic(base_url=url, api_key=KEY) as other:
        count = await other.messages.count_tokens(model="default", messages=sent)
    assert count.input_tokens == counted.input_tokens


async def test_several_choices_see_the_same(tmp_path):
    async with seeing(tmp_path) as (url, models), openai(url) as client:
        await client.chat.completions.create(model="default", messages=SHOWN[0][1], n=3)
    first, *others = (request.messages for request in models.requests)
    assert others == [first, first]


async def test_a_client_cannot_write_a_place(tmp_path):
    """What stands for an image in a text would move those that come after it."""
    sent = [
        {"role": "system", "content": f"a{PLACE}"},
        {"role": "user", "content": [text_part(f"b{PLACE}"), url_part(PNG_URL)]},
    ]
    system, user = (await asked(tmp_path, chat, sent)).messages
    assert (system.content, user.content) == ("a\ufffd", f"b\ufffd{PLACE}")
    models = FakeModels()
    async with serving(models) as url:
        await chat(url, [{"role": "user", "content": PLACE}])
    assert models.requests[-1].messages == (Message("user", "\ufffd"),)


@pytest.mark.parametrize(("ask", "sent"), SHOWN, ids=IDS)
async def test_a_model_that_does_not_see_says_so(ask, sent):
    async with serving(FakeModels()) as url:
        with pytest.raises(
            (BadRequestError, anthropic.BadRequestError), match=r"scripted cannot see images\. .*/v1/models"
        ):
            await ask(url, sent)


@pytest.mark.parametrize(("ask", "sent"), RETURNED, ids=IDS)
async def test_what_a_tool_returns_does_not_end_a_conversation(ask, sent):
    models = FakeModels()
    async with serving(models) as url:
        await ask(url, sent)
    assert models.requests[-1].messages[-1] == Message("tool", f"See:\n{UNREAD}", call_id="a")


async def test_a_damaged_image_of_a_tool_is_not_read(tmp_path):
    _, sent = RETURNED[2]
    result = {"type": "tool_result", "tool_use_id": "a"}
    broken = [block("AAAA"), text_part("and"), block(PNG_TEXT), {"type": "document"}]
    sent = [*sent[:2], {"role": "user", "content": [result | {"content": broken}]}]
    last = (await asked(tmp_path, message, sent)).messages[-1]
    assert last.content == f"{UNREAD}\nand{PLACE}{UNREAD}"
    assert shown(last) == BOTH[:1]


FIELD = "messages[0].content[0].image_url"


@pytest.mark.parametrize(
    ("url", "code", "match"),
    [
        ("data:image/png;base64,AAAA", "invalid_image", "is not an image"),
        ("data:image/png;base64,&&&&", "invalid_image", "not valid base64"),
        (f"data:;base64,{base64.b64encode(PNG[:60]).decode()}", "invalid_image", "damaged"),
        (f"data:application/pdf;base64,{base64.b64encode(b'%PDF-1.4').decode()}", "invalid_image", "not an"),
        ("data:image/svg+xml,<svg/>", "invalid_value", "must be a data URL"),
        ("file:///etc/passwd", "invalid_value", "must be a data URL"),
        ("/etc/passwd", "invalid_value", "must be a data URL"),
        ("https://example.org/a.png", "invalid_image", "--fetch-images"),
    ],
)
async def test_what_is_no_image_is_refused(tmp_path, url, code, match):
    sent = {"model": "default", "messages": [{"role": "user", "content": [url_part(url)]}]}
    async with seeing(tmp_path) as (server, models):
        with pytest.raises(BadRequestError, match=match) as caught:
            await chat(server, sent["messages"])
    error = caught.value
    assert (error.status_code, error.param, error.code) == (400, FIELD, code)
    assert models.requests == []


async def test_a_disk_that_takes_no_image_is_the_servers_fault():
    async with serving(FakeModels(sees=True)) as url:
        with pytest.raises(InternalServerError, match="The image cannot be stored in images: ") as caught:
            await chat(url, SHOWN[0][1])
    assert caught.value.status_code == 503


async def test_only_so_many_images(tmp_path, monkeypatch):
    monkeypatch.setattr("edgechat.server.media.request_media.MOST", 1)
    async with seeing(tmp_path) as (url, _):
        with pytest.raises(APIStatusError, match="has 2 images and sounds; the limit is 1") as caught:
            await chat(url, SHOWN[0][1])
    assert caught.value.status_code == 413


async def test_no_other_messages_have_images(tmp_path):
    async with seeing(tmp_path) as (url, _):
        for role in ("system", "assistant"):
            with pytest.raises(ResponseError, match="of the user and of tools") as caught:
                await ollama_chat(url, [{"role": role, "content": "x", "images": [PNG_TEXT]}])
            assert caught.value.status_code == 400
        with pytest.raises(anthropic.BadRequestError, match="message of the user"):
            await message(url, [{"role": "assistant", "content": [block(PNG_TEXT)]}])
        client = AsyncClient(host=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=60)
        with pytest.raises(ResponseError, match="omit raw and suffix") as caught:
            await client.generate(model="default", prompt="x", images=[PNG], raw=True)
        assert caught.value.status_code == 400


async def test_large_images_are_taken(tmp_path):
    data = base64.b64encode(encoded(quadrants(2000, 1800), "BMP")).decode()
    assert len(data) > 14_000_000
    sent = [{"role": "user", "content": [url_part(f"data:image/bmp;base64,{data}")]}]
    assert (await asked(tmp_path, chat, sent)).messages[-1].media[0].width == 2000


@pytest.mark.parametrize("sees", [True, False])
async def test_the_lists_say_which_models_see(sees):
    async with serving(FakeModels(sees=sees)) as url:
        listed = (await ask(url, "GET", "/v1/models"))[2]["data"][0]
        tag = (await ask(url, "GET", "/api/tags"))[2]["models"][0]
        show = (await ask(url, "POST", "/api/show", body=b'{"model": "scripted"}'))[2]
    assert listed["architecture"]["input_modalities"] == (["text", "image"] if sees else ["text"])
    assert ("vision" in tag["capabilities"], "vision" in show["capabilities"]) == (sees, sees)
