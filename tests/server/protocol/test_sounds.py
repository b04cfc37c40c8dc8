"""Sounds in requests: what reaches the engine of a model that hears, or does not."""

import base64
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgechat.base.file_library import digest_of
from edgechat.base.images.image import PLACE, Image
from edgechat.base.sound.sound import Sound
from edgechat.server.media.request_media import RequestMedia
from edgechat.server.protocol.decoding import UNREAD
from tests.kit.vision import tone, wav
from tests.server.fakes import FakeModels, serving
from tests.server.protocol.test_images import CALL, PNG_URL, chat, respond, text_part, url_part

WAV = wav(tone("red", 0.1))
Ask = Callable[[str, Any], Awaitable[None]]


def sound_part(data=WAV, form="wav"):
    text = base64.b64encode(data).decode() if isinstance(data, bytes) else data
    return {"type": "input_audio", "input_audio": {"data": text, "format": form}}


async def asked(tmp_path, ask, sent, **info):
    """Ask; return the last message that the engine got."""
    models = FakeModels(**{"hears": True} | info)
    async with serving(models, media=RequestMedia(tmp_path / "media")) as url:
        await ask(url, sent)
    return models.requests[-1].messages[-1]


@pytest.mark.parametrize(
    ("ask", "parts"),
    [
        (chat, [text_part("This:"), sound_part(), text_part("is what?")]),
        (
            respond,
            [
                {"type": "input_text", "text": "This:"},
                sound_part(f"data:audio/wav;base64,{base64.b64encode(WAV).decode()}"),
                {"type": "input_text", "text": "is what?"},
            ],
        ),
    ],
    ids=["chat", "responses"],
)
async def test_sounds_stand_where_they_were_sent(tmp_path, ask, parts):
    last = await asked(tmp_path, ask, [{"role": "user", "content": parts}])
    assert last.content == f"This:{PLACE}is what?"
    (sound,) = last.media
    assert isinstance(sound, Sound)
    assert (sound.digest, sound.seconds) == (digest_of(WAV), pytest.approx(0.1))
    assert Path(sound.path).read_bytes() == WAV


async def test_images_and_sounds_keep_their_order(tmp_path):
    parts = [url_part(PNG_URL), sound_part(), url_part(PNG_URL)]
    last = await asked(tmp_path, chat, [{"role": "user", "content": parts}], sees=True)
    assert [type(one) for one in last.media] == [Image, Sound, Image]


async def test_a_sound_that_a_tool_returns(tmp_path):
    sent = [
        {"role": "user", "content": "Listen"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "a", "content": [text_part("Heard:"), sound_part()]},
    ]
    last = await asked(tmp_path, chat, sent)
    assert (last.role, last.content, len(last.media)) == ("tool", f"Heard:{PLACE}", 1)
    last = await asked(tmp_path, chat, sent, hears=False, sees=True)
    assert (last.content, last.media) == (f"Heard:\n{UNREAD}", ())


async def refusal(models, folder, part):
    async with serving(models, media=RequestMedia(folder)) as url:
        with pytest.raises(Exception, match="Error code: 400") as caught:
            await chat(url, [{"role": "user", "content": [part]}])
    assert models.requests == []
    return caught.value


@pytest.mark.parametrize(
    ("part", "code", "match"),
    [
        (sound_part(b"RIFF"), "invalid_audio", "is not a sound"),
        (sound_part("?"), "invalid_audio", "not valid base64"),
        (sound_part(WAV[:-9]), "invalid_audio", "is damaged, or not complete"),
        (sound_part("data:audio/wav,abc"), "invalid_value", "must be base64"),
        (sound_part(form="ogg"), "invalid_value", "input_audio.format: Invalid enum value 'ogg'"),
    ],
)
async def test_what_is_no_sound_is_refused(tmp_path, part, code, match):
    error = await refusal(FakeModels(hears=True), tmp_path, part)
    assert error.code == code
    assert error.param.startswith("messages[0].content[0].input_audio")
    assert match in error.message


async def test_a_model_that_does_not_hear_says_so(tmp_path):
    error = await refusal(FakeModels(sees=True), tmp_path / "media", sound_part())
    assert "scripted cannot hear sounds." in error.message
    assert "To download one: edgechat pull gemma-4-e2b" in error.message
    assert not (tmp_path / "media").exists()


async def test_it_names_one_that_is_here(tmp_path, monkeypatch):
    models = FakeModels()
    card = models.names()[0]
    cards = [card, msgspec.structs.replace(card, id="the-ear", hears=True)]
    monkeypatch.setattr(models, "names", lambda: cards)
    error = await refusal(models, tmp_path, sound_part())
    assert "the-ear does: name it as the model." in error.message
