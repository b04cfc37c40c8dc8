"""Models that see or hear, over HTTP: the real server, planner, worker and libmtmd, in every protocol."""

import io
from pathlib import Path

import pytest
from PIL import Image

from edgechat.engine.types import Message, ToolCall
from tests.kit.vision import hearing, noisy, seeing, tone, wav
from tests.server.dialects import CHAT, MESSAGES, OLLAMA, RESPONSES, coded, named
from tests.server.program import served

pytestmark = pytest.mark.slow
QUESTION = "What colour is it?"
MP3 = Path(__file__).parents[1] / "base" / "sound" / "green.mp3"


def started(model, tmp_path_factory):
    made = model("dense", folder=tmp_path_factory.mktemp("models"))
    return served(made.model, "--ctx", "2048", home=tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def eyes(tmp_path_factory):
    with started(seeing, tmp_path_factory) as server:
        yield server


@pytest.fixture(scope="module")
def ears(tmp_path_factory):
    with started(hearing, tmp_path_factory) as server:
        yield server


def png(colour):
    buffer = io.BytesIO()
    Image.fromarray(noisy(colour)).save(buffer, "PNG")
    return buffer.getvalue()


def asked(server, dialect, *messages):
    """Return the status, and the answer as it came."""
    settings = dialect.said(temperature=0, max_tokens=8)
    return server.ask(dialect.path, {"stream": False} | settings | dialect.said(messages=messages))


def told(server, dialect, *messages):
    status, answer = asked(server, dialect, *messages)
    assert status == 200, answer
    return dialect.read(answer).text.strip()


def question(*files):
    return Message("user", [*files, QUESTION])


def is_cached(server, dialect, *messages):
    n_prompt, n_cached, _ = dialect.read(asked(server, dialect, *messages)[1]).tokens
    return dialect is OLLAMA or n_cached >= 0.8 * n_prompt


@pytest.mark.parametrize(
    ("dialect", "colour"),
    [(CHAT, "red"), (CHAT, "cyan"), (RESPONSES, "yellow"), (MESSAGES, "blue"), (OLLAMA, "magenta")],
    ids=named,
)
def test_images(eyes, dialect, colour):
    assert told(eyes, dialect, question(png(colour))) == colour
    assert is_cached(eyes, dialect, question(png(colour)))


@pytest.mark.parametrize(
    ("dialect", "colour"), [(CHAT, "black"), (CHAT, "red"), (CHAT, "cyan"), (RESPONSES, "yellow")], ids=named
)
def test_sounds(ears, dialect, colour):
    assert told(ears, dialect, question(wav(tone(colour)))) == colour
    assert is_cached(ears, dialect, question(wav(tone(colour))))


def test_mp3(ears):
    sent = CHAT.said(messages=[question(wav(tone("red")))])
    sent["messages"][0]["content"][0]["input_audio"] = {"data": coded(MP3.read_bytes()), "format": "mp3"}
    status, answer = ears.ask(CHAT.path, CHAT.said(temperature=0, max_tokens=8) | sent)
    assert (status, answer["choices"][0]["message"]["content"].strip()) == (200, "green")


def test_an_image_that_a_tool_returns(eyes):
    call = Message("assistant", "", calls=(ToolCall("a", "look", "{}"),))
    result = Message("tool", [png("green"), QUESTION], call_id="a")
    assert told(eyes, CHAT, Message("user", "Look."), call, result) == "green"


def test_what_they_do_not_take(ears, eyes):
    status, answer = asked(ears, CHAT, question(b"RIFF"))
    assert (status, answer["error"]["code"]) == (400, "invalid_audio")
    for server, sent, said in (
        (ears, png("red"), "cannot process images"),
        (eyes, wav(tone("red")), "cannot process audio"),
    ):
        status, answer = asked(server, CHAT, question(sent))
        assert (status, said in answer["error"]["message"]) == (400, True)
    assert "edgechat pull gemma-4-e2b" in answer["error"]["message"]


def test_the_lists_tell_of_it(ears, eyes):
    for server, sense in ((ears, "audio"), (eyes, "image")):
        listed = server.ask("/v1/models")[1]["data"][0]
        assert listed["architecture"]["input_modalities"] == ["text", sense]
    assert "vision" in eyes.ask("/api/show", {"model": listed["id"]})[1]["capabilities"]
