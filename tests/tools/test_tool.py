"""What a tool is: its names, its pin, and texts that hide nothing."""

import msgspec
import pytest

from edgechat.tools.tool import ToolSpec, inert, shown_arguments

SCHEMA = '{"type":"object","properties":{}}'
SPEC = ToolSpec(server="disk", name="read.file", description="Reads.", schema=SCHEMA)


def changed(**values):
    return msgspec.structs.replace(SPEC, **values)


def test_names_for_the_model():
    assert SPEC.model_name == "disk__read_file"
    assert changed(server="My server", name="a b").model_name == "My_server__a_b"
    assert changed(name="x" * 100).model_name == ("disk__" + "x" * 100)[:64]
    assert changed(server="files", name="read_file", built_in=True).model_name == "read_file"


def test_a_pin_is_of_all_that_was_shown():
    assert SPEC.pin == changed().pin == changed(schema='{"properties": {}, "type": "object"}').pin
    others = [
        changed(server="disk2"),
        changed(name="write"),
        changed(title="Reads"),
        changed(description="Reads and sends."),
        changed(schema='{"type":"object"}'),
    ]
    assert len({SPEC.pin, *(other.pin for other in others)}) == 6
    assert changed(read_only=True).pin == SPEC.pin  # a hint, which no permission follows from


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\x1b[31mb\x07", "a[31mb"),
        ("a\u202eb\u2066c", "abc"),
        ("a\U000e0041\U000e007fb", "ab"),  # Unicode's tags: text that only a model sees
        ("a\u200bb\u2060c\ufeffd\ue000e", "abcde"),
        ("👨\u200d👩\u200d👧 می\u200cخواهم", "👨\u200d👩\u200d👧 می\u200cخواهم"),
        ("lines\n\tstay é 漢", "lines\n\tstay é 漢"),
    ],
)
def test_inert_text(text, expected):
    assert inert(text) == expected


def test_arguments_are_shown_whole():
    assert (
        shown_arguments('{"a":"é\\u001b[2J","b":[1]}') == '{\n  "a": "é\\u001b[2J",\n  "b": [\n    1\n  ]\n}'
    )
    assert shown_arguments('{"a": "x\u202ey\U000e0041"}') == '{\n  "a": "x\\u202ey\\ue0041"\n}'
    assert shown_arguments("no \x1bJSON") == "no \\u001bJSON"
    assert shown_arguments("[" * 100_000) == "[" * 100_000
