"""A model that hears, over HTTP: the real server, planner, worker and libmtmd."""

import base64
from pathlib import Path

import pytest

from tests.kit.vision import hearing, seeing, tone, wav
from tests.server.program import served

pytestmark = pytest.mark.slow
QUESTION = "What colour is it?"
MP3 = Path(__file__).parents[2] / "base" / "sound" / "green.mp3"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    ears = hearing("dense", folder=tmp_path_factory.mktemp("models"))
    with served(ears.model, "--ctx", "2048", home=tmp_path_factory.mktemp("home")) as server:
        yield server


def sound(data, form="wav"):
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": form}}


def asked(server, *parts):
    content = [*parts, {"type": "text", "text": QUESTION}]
    messages = [{"role": "user", "content": content}]
    return server.ask("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 8})


@pytest.mark.parametrize("colour", ["black", "red", "cyan"])
def test_chat_completions(server, colour):
    heard = sound(wav(tone(colour)))
    status, answer = asked(server, heard)
    assert (status, answer["choices"][0]["message"]["content"].strip()) == (200, colour)
    again = asked(server, heard)[1]["usage"]
    assert again["prompt_tokens_details"]["cached_tokens"] >= 0.8 * again["prompt_tokens"]


def test_mp3(server):
    status, answer = asked(server, sound(MP3.read_bytes(), "mp3"))
    assert (status, answer["choices"][0]["message"]["content"].strip()) == (200, "green")


def test_responses(server):
    parts = [sound(wav(tone("yellow"))), {"type": "input_text", "text": QUESTION}]
    body = {"input": [{"role": "user", "content": parts}], "temperature": 0}
    status, answer = server.ask("/v1/responses", body)
    assert status == 200, answer
    assert answer["output"][0]["content"][0]["text"].strip() == "yellow"


def test_what_it_does_not_take(server):
    status, answer = asked(server, sound(b"RIFF"))
    assert (status, answer["error"]["code"]) == (400, "invalid_audio")
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    status, answer = asked(server, picture)
    assert status == 400
    assert "cannot see images" in answer["error"]["message"]


def test_the_list_tells_of_it(server):
    listed = server.ask("/v1/models")[1]["data"][0]
    assert listed["architecture"]["input_modalities"] == ["text", "audio"]


def test_a_deaf_model_names_one_that_hears(tmp_path):
    eyes = seeing("dense", folder=tmp_path / "models")
    with served(eyes.model, "--ctx", "1024", home=tmp_path / "home") as deaf:
        status, answer = asked(deaf, sound(wav(tone("red"))))
    assert status == 400
    assert "cannot hear sounds" in answer["error"]["message"]
    assert "edgechat pull gemma-4-e2b" in answer["error"]["message"]
