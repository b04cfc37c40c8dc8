"""Images and sounds in every dialect: what reaches the engine of a model that sees or hears, or does not."""

from functools import partial
from pathlib import Path

import msgspec
import pytest

from edgechat.base.file_library import digest_of
from edgechat.base.images.image import PLACE, Image
from edgechat.base.sound.sound import Sound
from edgechat.engine.types import Message, ToolCall
from edgechat.server.media import MARK, UNREAD, RequestMedia
from tests.base.images.files import encoded, quadrants
from tests.kit.vision import tone, wav
from tests.server.dialects import CHAT, GENERATE, MESSAGES, OLLAMA, RESPONSES, coded, named
from tests.server.fakes import FakeModels, serving
from tests.server.raw import ask

PNG, JPEG, WAV = encoded(quadrants(), "PNG"), encoded(quadrants(20, 10), "JPEG"), wav(tone("red", 0.1))
user = partial(Message, "user")
SHOWN = [user(["This:", PNG, "and this:", JPEG])]
CALLING = [user("Look"), Message("assistant", "", calls=(ToolCall("a", "look", "{}"),))]
BOTH = [(digest_of(PNG), 64, 32), (digest_of(JPEG), 20, 10)]
all_three = pytest.mark.parametrize("dialect", [CHAT, RESPONSES, MESSAGES], ids=named)


def returning(*parts):
    return [*CALLING, Message("tool", parts, call_id="a")]


@pytest.fixture
def last(tmp_path):
    """Ask a model that sees and hears, or cannot; return the last message that the engine got."""

    async def last(dialect, *messages, models=None, **fields):
        models = models or FakeModels(sees=True, hears=True)
        media = {"media": RequestMedia(tmp_path / "media")}
        fields |= dialect.said(messages=messages) if messages else {}
        request = await dialect.asked(models, on=media, **fields)
        assert MARK not in repr(request)
        return request.messages[-1]

    return last


def shown(message):
    """Return the images of a message, whose files are there."""
    for image in message.media:
        assert digest_of(Path(image.path).read_bytes()) == image.digest
    return [(image.digest, image.width, image.height) for image in message.media]


@all_three
async def test_images_stand_where_they_were_sent(last, dialect):
    message = await last(dialect, *SHOWN)
    assert (message.content, shown(message)) == (f"This:{PLACE}and this:{PLACE}", BOTH)


@all_three
async def test_images_that_a_tool_returns(last, dialect):
    message = await last(dialect, *returning("See:", PNG))
    assert (message.role, message.content, message.call_id) == ("tool", f"See:{PLACE}", "a")
    assert shown(message) == BOTH[:1]
    message = await last(dialect, *returning("See:", PNG), models=FakeModels())
    assert message == Message("tool", f"See:\n{UNREAD}", call_id="a")


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES], ids=named)
async def test_sounds_stand_where_they_were_sent(last, dialect):
    message = await last(dialect, user(["This:", WAV, "is what?"]))
    (sound,) = message.media
    assert (message.content, type(sound)) == (f"This:{PLACE}is what?", Sound)
    assert (sound.digest, sound.seconds) == (digest_of(WAV), pytest.approx(0.1))
    assert Path(sound.path).read_bytes() == WAV
    message = await last(dialect, *returning("Heard:", WAV))
    assert (message.role, message.content, len(message.media)) == ("tool", f"Heard:{PLACE}", 1)
    message = await last(dialect, *returning("Heard:", WAV), models=FakeModels(sees=True))
    assert (message.content, message.media) == (f"Heard:\n{UNREAD}", ())


async def test_images_and_sounds_keep_their_order(last):
    message = await last(CHAT, user([PNG, WAV, PNG]))
    assert [type(one) for one in message.media] == [Image, Sound, Image]


async def test_ollama_puts_images_before_the_text(last):
    message = await last(OLLAMA, user([PNG, JPEG, "These?"]))
    assert (message.content, shown(message)) == (f"{PLACE}{PLACE}These?", BOTH)
    message = await last(OLLAMA, *returning(PNG, "See"))
    assert (message.role, message.content, shown(message)) == ("tool", f"{PLACE}See", BOTH[:1])
    message = await last(GENERATE, prompt="This?", images=[PNG])
    assert (message.content, shown(message)) == (f"{PLACE}This?", BOTH[:1])
    assert (await last(GENERATE, prompt="", images=[PNG])).content == PLACE


async def test_tokens_of_images_are_counted(tmp_path):
    async with serving(FakeModels(sees=True), media=RequestMedia(tmp_path)) as url:
        async with RESPONSES.connected(url) as client:
            sent = RESPONSES.said(messages=SHOWN)
            counted = await client.responses.input_tokens.count(model="default", **sent)
        async with MESSAGES.connected(url) as client:
            count = await client.messages.count_tokens(model="default", **MESSAGES.said(messages=SHOWN))
    assert counted.input_tokens == count.input_tokens == len(f"This:{PLACE}and this:{PLACE}")


async def test_several_choices_see_the_same(last):
    models = FakeModels(sees=True)
    await last(CHAT, *SHOWN, models=models, n=3)
    first, *others = (request.messages for request in models.requests)
    assert others == [first, first]


async def test_a_client_cannot_write_a_place(last):
    """What stands for an image in a text would move those that come after it."""
    models = FakeModels(sees=True)
    await last(CHAT, Message("system", f"a{PLACE}"), user([f"b{PLACE}", PNG]), models=models)
    system, message = models.requests[-1].messages
    assert (system.content, message.content) == ("a\ufffd", f"b\ufffd{PLACE}")
    assert await last(CHAT, user(PLACE), models=FakeModels()) == user("\ufffd")


@all_three
async def test_a_model_that_does_not_see_says_so(dialect):
    refused = await dialect.refused(**dialect.said(messages=SHOWN))
    assert refused.status == 400
    assert "scripted cannot process images. " in refused.message
    assert "/v1/models" in refused.message


async def test_a_model_that_does_not_hear_says_so_and_names_one_that_is_here(tmp_path, monkeypatch):
    models = FakeModels(sees=True)
    asked = {"on": {"media": RequestMedia(tmp_path / "media")}, **CHAT.said(messages=[user([WAV])])}
    refused = await CHAT.refused(models, **asked)
    assert "scripted cannot process audio." in refused.message
    assert "To download one: edgechat pull gemma-4-e2b" in refused.message
    assert not (tmp_path / "media").exists()
    card = models.names()[0]
    cards = [card, msgspec.structs.replace(card, id="the-ear", hears=True)]
    monkeypatch.setattr(models, "names", lambda: cards)
    refused = await CHAT.refused(models, **asked)
    assert (refused.status, models.requests) == (400, [])
    assert "the-ear can: request that model instead." in refused.message


async def test_a_damaged_image_of_a_tool_is_not_read(last):
    sent = MESSAGES.said(messages=returning("and", PNG))
    broken = MESSAGES.part(PNG)
    broken["source"]["data"] = "AAAA"
    content = sent["messages"][-1]["content"][0]["content"]
    content[:] = [broken, *content, {"type": "document"}]
    message = await last(MESSAGES, **sent)
    assert (message.content, shown(message)) == (f"{UNREAD}\nand{PLACE}{UNREAD}", BOTH[:1])


def url(url):
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


def sound(data, form="wav"):
    return {"type": "input_audio", "input_audio": {"data": data, "format": form}}


@pytest.mark.parametrize(
    ("part", "code", "match"),
    [
        (url("data:image/png;base64,AAAA"), "invalid_image", "is not an image"),
        (url("data:image/png;base64,&&&&"), "invalid_image", "not valid base64"),
        (url(f"data:;base64,{coded(PNG[:60])}"), "invalid_image", "damaged"),
        (url(f"data:application/pdf;base64,{coded(b'%PDF-1.4')}"), "invalid_image", "not an"),
        (url("data:image/svg+xml,<svg/>"), "invalid_value", "must be a data URL"),
        (url("file:///etc/passwd"), "invalid_value", "must be a data URL"),
        (url("/etc/passwd"), "invalid_value", "must be a data URL"),
        (url("https://example.org/a.png"), "invalid_image", "--fetch-images"),
        (sound(coded(b"RIFF")), "invalid_audio", "is not an audio file"),
        (sound("?"), "invalid_audio", "not valid base64"),
        (sound(coded(WAV[:30])), "invalid_audio", "is damaged"),
        (sound("data:audio/wav,abc"), "invalid_value", "must be base64"),
        (sound(coded(WAV), "ogg"), "invalid_value", "input_audio.format: Invalid enum value 'ogg'"),
    ],
)
async def test_what_is_no_image_and_no_sound_is_refused(tmp_path, part, code, match):
    models = FakeModels(sees=True, hears=True)
    asked = {"on": {"media": RequestMedia(tmp_path)}, "messages": [{"role": "user", "content": [part]}]}
    refused = await CHAT.refused(models, **asked)
    assert (refused.status, refused.code, models.requests) == (400, code, [])
    assert match in refused.message
    field = f"messages[0].content[0].{part['type']}"
    assert refused.param == field or (code, refused.param) == ("invalid_value", f"{field}.format")


async def test_a_disk_that_takes_no_image_is_the_servers_fault():
    refused = await CHAT.refused(FakeModels(sees=True), **CHAT.said(messages=SHOWN))
    assert refused.status == 503
    assert "The image cannot be stored in images: " in refused.message


async def test_only_so_many_images(monkeypatch):
    monkeypatch.setattr("edgechat.server.media.MOST", 1)
    refused = await CHAT.refused(FakeModels(sees=True), **CHAT.said(messages=SHOWN))
    assert refused.status == 413
    assert "has 2 images and audio clips; the limit is 1" in refused.message


async def test_no_other_messages_have_images():
    models = FakeModels(sees=True)
    for role in ("system", "assistant"):
        refused = await OLLAMA.refused(models, **OLLAMA.said(messages=[Message(role, [PNG, "x"])]))
        assert (refused.status, "user and tool messages" in refused.message) == (400, True)
    sent = [{"role": "assistant", "content": [MESSAGES.part(PNG)]}]
    refused = await MESSAGES.refused(models, messages=sent)
    assert (refused.status, "user message" in refused.message) == (400, True)
    refused = await GENERATE.refused(models, prompt="x", images=[PNG], raw=True)
    assert (refused.status, "omit raw and suffix" in refused.message) == (400, True)


@pytest.mark.slow
async def test_large_images_are_taken(last):
    data = encoded(quadrants(2000, 1800), "BMP")
    assert len(coded(data)) > 14_000_000
    assert (await last(CHAT, user([data]))).media[0].width == 2000


@pytest.mark.parametrize("sees", [True, False])
async def test_the_lists_say_which_models_see(sees):
    async with serving(FakeModels(sees=sees)) as url:
        listed = (await ask(url, "GET", "/v1/models"))[2]["data"][0]
        tag = (await ask(url, "GET", "/api/tags"))[2]["models"][0]
        show = (await ask(url, "POST", "/api/show", body=b'{"model": "scripted"}'))[2]
    assert listed["architecture"]["input_modalities"] == (["text", "image"] if sees else ["text"])
    assert ("vision" in tag["capabilities"], "vision" in show["capabilities"]) == (sees, sees)
