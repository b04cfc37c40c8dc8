"""What Ollama keeps beside a model, sound and not."""

import json

import pytest

from edgechat.models.local.ollama_store import (
    MAX_PARAMS,
    MAX_STOPS,
    MAX_TEXT,
    NO_DEFAULTS,
    OllamaLayers,
    in_words,
    read_defaults,
)
from edgechat.settings import SamplingDefaults

PARAMS = {
    "temperature": 0,
    "top_k": 20,
    "repeat_penalty": 1.1,
    "stop": ["<|a|>", "b", "b"],
    "num_ctx": 4096,
}


def layer(tmp_path, content):
    path = tmp_path / "layer"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def test_parameters_become_the_models(tmp_path):
    found = read_defaults(OllamaLayers(params=layer(tmp_path, PARAMS)))
    # With a temperature of 0 the file's own penalty holds all the same: the one who wrote it wanted both.
    assert found.sampling == SamplingDefaults(temperature=0, top_k=20, repetition_penalty=1.1)
    assert (found.context, found.stop, found.unread) == (4096, ("<|a|>", "b"), ())
    assert in_words(found) == (
        "temperature 0, top_k 20, repetition_penalty 1.1, context 4096, stop '<|a|>' 'b'"
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", None),
        (b"{}", None),
        (b"null", "not a JSON object"),
        (b"[" * 60_000, "not a JSON object"),
        (b"\xff\x00", "not a JSON object"),
        (b" " * (MAX_PARAMS + 1), "cannot be read"),
        ({"temperature": "hot"}, "temperature = hot is not valid"),
        ({"temperature": 1e9}, "is not valid"),
        ({"top_k": -3}, "is not valid"),
        ({"num_ctx": 0}, "num_ctx = 0 is not valid"),
        ({"num_ctx": True}, "num_ctx"),
        ({"num_ctx": 10**30}, "num_ctx"),
        ({"stop": ["", 3, "x" * 999]}, "3 of Ollama's 3 stop strings"),
        ({"stop": ["x"] * 9 * MAX_STOPS}, "stop strings are not valid"),
        ({"mirostat": 1, "num_gpu": 3, "seed": 7}, "no effect here: mirostat, seed."),
        ({"num_gpu": 3, "num_keep": 24}, None),
        ({"\x1b]0;x": 1}, "no effect here"),
    ],
)
def test_what_is_not_valid_is_named_and_left_out(tmp_path, content, why):
    found = read_defaults(OllamaLayers(params=layer(tmp_path, content)))
    assert found.sampling == SamplingDefaults()
    assert found.context is None
    assert len(found.stop) <= 1
    assert (why or "") in " ".join(found.unread)
    assert "\x1b" not in " ".join(found.unread)
    assert bool(why) == bool(found.unread)


def test_texts_are_bounded_and_a_folder_is_none(tmp_path):
    assert read_defaults(OllamaLayers(system=layer(tmp_path, b" Be brief.\n"))).system == "Be brief."
    found = read_defaults(OllamaLayers(system=layer(tmp_path, b"a" * (MAX_TEXT + 1)), template=tmp_path))
    assert found.system == ""
    assert len(found.unread) == 2
    assert read_defaults(OllamaLayers()) == NO_DEFAULTS


def test_a_template_is_known_or_said_to_be_unread(tmp_path):
    known = read_defaults(OllamaLayers(template=layer(tmp_path, b"<|start_header_id|>{{ .Role }}<|eot_id|>")))
    assert (known.chat_format, known.unread) == ("Llama 3", ())
    unknown = read_defaults(OllamaLayers(template=layer(tmp_path, b"{{ .Prompt }}")))
    assert unknown.template is None
    assert "is ignored" in unknown.unread[0]
