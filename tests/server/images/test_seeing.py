"""A model that sees, over HTTP: the real server, planner, worker and libmtmd, in every protocol."""

import base64
import io

import pytest
from PIL import Image

from tests.kit.vision import noisy, seeing
from tests.server.program import served

pytestmark = pytest.mark.slow
QUESTION = "What colour is it?"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    eyes = seeing("dense", folder=tmp_path_factory.mktemp("models"))
    with served(eyes.model, "--ctx", "2048", home=home) as server:
        yield server


def png(colour):
    buffer = io.BytesIO()
    Image.fromarray(noisy(colour)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def asked(server, path, body):
    status, answer = server.ask(path, {"model": "default", "temperature": 0, "max_tokens": 8, **body})
    assert status == 200, answer
    return answer


@pytest.mark.parametrize("colour", ["red", "cyan"])
def test_chat_completions(server, colour):
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png(colour)}"}}
    parts = [image, {"type": "text", "text": QUESTION}]
    answer = asked(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": parts}]})
    assert answer["choices"][0]["message"]["content"].strip() == colour
    again = asked(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": parts}]})
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 0.8 * again["usage"]["prompt_tokens"]


def test_responses(server):
    parts = [
        {"type": "input_image", "image_url": f"data:image/png;base64,{png('yellow')}"},
        {"type": "input_text", "text": QUESTION},
    ]
    body = {"input": [{"role": "user", "content": parts}], "temperature": 0}
    status, answer = server.ask("/v1/responses", body)
    assert status == 200, answer
    assert answer["output"][0]["content"][0]["text"].strip() == "yellow"


def test_messages(server):
    source = {"type": "base64", "media_type": "image/png", "data": png("blue")}
    parts = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
    answer = asked(server, "/v1/messages", {"messages": [{"role": "user", "content": parts}]})
    assert answer["content"][0]["text"].strip() == "blue"


def test_ollama(server):
    message = {"role": "user", "content": QUESTION, "images": [png("magenta")]}
    body = {"model": "default", "messages": [message], "stream": False, "options": {"temperature": 0}}
    status, answer = server.ask("/api/chat", body)
    assert status == 200, answer
    assert answer["message"]["content"].strip() == "magenta"


def test_an_image_that_a_tool_returns(server):
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png('green')}"}}
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": [image, {"type": "text", "text": QUESTION}]},
    ]
    answer = asked(server, "/v1/chat/completions", {"messages": messages})
    assert answer["choices"][0]["message"]["content"].strip() == "green"


def test_the_lists_tell_of_it(server):
    listed = server.ask("/v1/models")[1]["data"][0]
    assert listed["architecture"]["input_modalities"] == ["text", "image"]
    assert "vision" in server.ask("/api/show", {"model": listed["id"]})[1]["capabilities"]
