"""Tool calls found in the output of models of each family."""

import json
import re
import time

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from edgechat.base.errors import SchemaError
from edgechat.engine.reply.reply import Reply
from edgechat.engine.tool_calls.scan import DEEPEST, JsonScan
from edgechat.engine.tool_calls.splitter import LONGEST_CALL, Splitter
from edgechat.engine.tool_calls.tools import MOST_CHARACTERS, MOST_TOOLS, check, kinds_of
from edgechat.engine.types import ChatRequest, Message, Tool, ToolCall
from tests.counting import calls_of
from tests.engine.families import SOURCES, TOOLS, family, reply_of, split
from tests.engine.prompt.test_prompts import template
from tests.properties import examples

BONN, NOW = ("get_weather", {"city": "Bonn", "days": 3}), ("now", {})
HERMES = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bonn", "days": 3}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
# What models write: the text, its answer, its thinking and its calls.
WRITTEN = {
    "generic": ("Let me see.\n\n" + HERMES + "\n", "Let me see.", "", [BONN, NOW]),
    "hermes": ("<think>\nhm\n</think>\n\nLet me see.\n" + HERMES, "Let me see.", "\nhm\n", [BONN, NOW]),
    "xml": (
        "hm\n</think>\n\nLet me see.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nBonn\n"
        "</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n"
        "</tool_call>",
        "Let me see.",
        "hm\n",
        [BONN, NOW],
    ),
    "llama": (
        '{"name": "get_weather", "parameters": {"city": "Bonn", "days": 3}}; '
        '{"name": "now", "parameters": {}}',
        "",
        "",
        [BONN, NOW],
    ),
    "mistral": (
        'Let me see.[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Bonn", "days": 3}, "id": '
        '"abcDEF123"}, {"name": "now", "arguments": {}}]',
        "Let me see.",
        "",
        [BONN, NOW],
    ),
    "args": (
        'Let me see.[TOOL_CALLS]get_weather[CALL_ID]abcDEF123[ARGS]{"city": "Bonn", "days": 3}'
        "[TOOL_CALLS]now[ARGS]{}",
        "Let me see.",
        "",
        [BONN, NOW],
    ),
    "gemma": (
        '<|channel>thought\nhm<channel|>Let me see.<|tool_call>call:get_weather{city:<|"|>Bonn<|"|>,days:3}'
        "<tool_call|><|tool_call>call:now{}<tool_call|><|tool_response>never said",
        "Let me see.",
        "\nhm",
        [BONN, NOW],
    ),
    "harmony": (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>Let me see."
        "<|end|><|start|>assistant<|channel|>analysis<|message|>, so<|end|><|start|>assistant<|channel|>"
        'commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Bonn", "days": 3}'
        "<|call|>never said",
        "Let me see.",
        "hm, so",
        [BONN],
    ),
}
CASES = [*WRITTEN.items(), ("llama", ("<|python_tag|>" + WRITTEN["llama"][0], *WRITTEN["llama"][1:]))]
CASES += [("harmony", (" to=functions.now<|channel|>commentary json<|message|>{}", "", "", [NOW]))]


def found(calls):
    return [(call.name, json.loads(call.arguments)) for call in calls]


@pytest.mark.parametrize(("name", "case"), CASES)
@given(cuts=st.lists(st.integers(1, 450), max_size=40))
@example(cuts=[*range(450)])
@settings(max_examples=examples(40))
def test_calls_are_found_however_the_text_is_cut(name, case, cuts):
    text, *expected = case
    assert len(text.encode()) < 450
    answer, thinking, calls = split(reply_of(name, thinking=name == "xml"), text, cuts)
    assert [answer, thinking, found(calls)] == expected


def test_every_format_has_its_template():
    assert {name: family(name).name for name in SOURCES} == {name: name for name in SOURCES}
    assert set(WRITTEN) == set(SOURCES)


@pytest.mark.parametrize("name", SOURCES)
def test_each_call_has_an_id_of_its_own(name):
    *_, calls = split(reply_of(name, thinking=name == "xml"), WRITTEN[name][0])
    form = r"[A-Za-z0-9]{9}" if name in ("mistral", "args") else r"call_[A-Za-z]{24}"
    assert all(re.fullmatch(form, call.id) for call in calls)
    assert len({call.id for call in calls}) == len(calls)


def test_an_id_that_the_model_gives_is_kept_where_its_template_wants_such():
    assert split(reply_of("mistral"), WRITTEN["mistral"][0])[2][0].id == "abcDEF123"
    twice = WRITTEN["args"][0] * 2
    ids = [call.id for call in split(reply_of("args"), twice)[2]]
    assert ids[0] == "abcDEF123"
    assert len(set(ids)) == 4


# Models forget their marks.

JSON_CALL = '{"name": "get_weather", "arguments": {"city": "Bonn", "days": 3}}'
SPREAD = '{\n  "name": "get_weather",\n  "arguments": {\n    "city": "Bonn",\n    "days": 3\n  }\n}'
JSON_NOW = '{"name": "now", "arguments": {}}'
# What is written, what is said of it, and what is called.
UNMARKED = {
    "fenced": (f"```json\n{SPREAD}\n```", "", [BONN]),
    "fenced without a word": (f"```\n{JSON_CALL}\n```\n", "", [BONN]),
    "fenced behind words": (f"I look.\n\n```json\n{JSON_CALL}\n```\nDone.", "I look.\nDone.", [BONN]),
    "fenced twice": (f"```json\n{JSON_CALL}\n```\n\n```json\n{JSON_NOW}\n```", "", [BONN, NOW]),
    "two in a fence": (f"```json\n{JSON_CALL}\n{JSON_NOW}\n```", "", [BONN, NOW]),
    "a list in a fence": (f"```json\n[\n{JSON_CALL},\n{JSON_NOW}\n]\n```", "", [BONN, NOW]),
    "behind other code": (
        f"```python\nprint()\n```\n```json\n{JSON_NOW}\n```",
        "```python\nprint()\n```",
        [NOW],
    ),
    "bare": (JSON_CALL, "", [BONN]),
    "bare and spread": (f"\n{SPREAD}\n", "", [BONN]),
    "a bare list": (f"[{JSON_CALL}, {JSON_NOW}]", "", [BONN, NOW]),
    "doubled": ("{" + JSON_CALL + "}", "", [BONN]),
    "doubled in a fence": ("```json\n{" + JSON_CALL + "}\n```", "", [BONN]),
    "parameters": (JSON_CALL.replace("arguments", "parameters"), "", [BONN]),
    "another mark": (f"I look. <tools>\n{JSON_CALL}\n</tools>", "I look.", [BONN]),
}


@pytest.mark.parametrize("family_name", ["generic", "hermes", "xml", "mistral", "args", "gemma"])
@pytest.mark.parametrize("name", UNMARKED)
def test_calls_without_marks_are_found(family_name, name):
    text, *expected = UNMARKED[name]
    for step in (1, 2, 5, 11, len(text)):
        answer, _, calls = split(reply_of(family_name), text, [*range(0, len(text), step)])
        assert [answer, found(calls)] == expected


def test_nothing_is_shown_of_what_becomes_a_call():
    text = UNMARKED["fenced behind words"][0].removesuffix("\nDone.")
    reply = reply_of("hermes")
    shown = [one for sign in text for one in reply.feed(sign.encode())] + reply.finish()
    assert "".join(one[0] for one in shown if isinstance(one, tuple)) == "I look."


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Alice", "age": 30}',
        '{"name": "now"}',
        '{"name": "now", "version": "1.0"}',
        '{"name": "now", "arguments": []}',
        '{"name": "nobody", "arguments": {}}',
        '[{"name": "Alice"}]',
        "[1, 2]",
        "{",
        "[",
        '```json\n{"name": "now", "version": "1.0"}\n```\nThat is it.',
        "```json\n{}\n```",
        "```python\nprint()\n```\n",
        f"It is `{JSON_NOW}` that I would write.",
        f"So: {JSON_NOW}",
        f"````md\n{JSON_NOW}\n````",
        f"```python\nprint()\n```\n{JSON_NOW}",
        "``` not a fence",
        "<tools>now</tools>",
        "a\n```",
        "a\n``",
    ],
)
def test_other_json_and_other_code_is_text(text):
    for step in (1, 2, 5, len(text)):
        assert split(reply_of("hermes"), text, [*range(0, len(text), step)]) == (text, "", [])


def test_other_json_is_shown_as_it_comes():
    reply = reply_of("hermes")
    shown = [one for sign in '{"name": "Al' for one in reply.feed(sign.encode())]
    assert "".join(one[0] for one in shown if isinstance(one, tuple)) == '{"name": "Al'


def test_where_a_grammar_makes_the_calls_other_json_is_never_one():
    for text in (JSON_NOW, f"```json\n{JSON_NOW}\n```"):
        calls = Splitter(family("hermes"), kinds_of(TOOLS), marked=True)
        assert split(Reply(calls=calls), text, [*range(len(text))]) == (text, "", [])


# What a template renders of a call is what a model has learnt to write.

VALUES = {
    "city": st.text(st.characters(codec="utf-8"), max_size=20),
    "days": st.integers(-(2**40), 2**40),
    "unit": st.sampled_from(["C", "F"]),
    "hours": st.lists(st.floats(-1e6, 1e6).map(lambda x: round(x, 3)), max_size=3),
    "more": st.fixed_dictionaries({"wind": st.booleans()}),
}
ARGUMENTS = st.fixed_dictionaries(
    {"city": VALUES["city"]}, optional={k: v for k, v in VALUES.items() if k != "city"}
)
ALSO = st.sampled_from(["</tool_call>", '"}}', "[TOOL_CALLS]", "{", "\\", "<|call|>", "\n\n<tool_call>\n"])


@pytest.mark.parametrize("name", SOURCES)
@given(arguments=ARGUMENTS, also=ALSO)
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
def test_a_call_is_read_as_its_template_renders_it(name, arguments, also):
    if name != "xml":
        arguments = arguments | {"city": f"{arguments['city']}{also}"}
    assert isinstance(arguments["city"], str)
    arguments["city"] = arguments["city"].replace("\r", "").replace("<" if name == "xml" else "\0", "")
    call = ToolCall("abcDEF123", "get_weather", json.dumps(arguments))
    chat = [Message("user", "Weather?")]
    source = template(SOURCES[name])
    before = source.render(chat, tools=TOOLS)
    after = source.render(
        [*chat, Message("assistant", "", calls=(call,))], tools=TOOLS, generation_prompt=False
    )
    begins = before.removesuffix("<think>\n").removesuffix("<|start|>assistant")
    assert after.startswith(begins)
    reply = after[len(begins) :].removeprefix("<|start|>assistant")
    for end in ("<|im_end|>\n", "<|eot_id|>", "</s>", "<|call|>"):
        reply = reply.removesuffix(end)
    answer, thinking, calls = split(reply_of(name), reply, [*range(0, len(reply), 3)])
    assert (answer, thinking, found(calls)) == ("", "", [("get_weather", arguments)])


# What is no call.

GARBAGE = [
    "<tool_call>",
    "</tool_call>",
    '{"name": "get_weather"',
    '{"name": "nobody", "arguments": {}}',
    ', "arguments": {',
    "}",
    '"',
    "\\",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[",
    "]",
    "<function=get_weather>",
    "<parameter=city>",
    "</parameter>",
    "</function>",
    "<|tool_call>",
    "call:get_weather{",
    "<tool_call|>",
    '<|"|>',
    "<|python_tag|>",
    "to=functions.nobody",
    "<|channel|>commentary to=functions.now",
    "<|constrain|>json",
    "```",
    "json",
    "<tools>",
    " ",
    "\n",
    "x",
    "é",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
@given(parts=st.lists(st.sampled_from(GARBAGE), max_size=12), cuts=st.lists(st.integers(0, 200), max_size=20))
@settings(max_examples=examples(100))
def test_nothing_is_lost_of_what_is_no_call(name, parts, cuts):
    text = "x" + "".join(parts)  # white space and marks before an answer are no part of it
    answer, thinking, calls = split(reply_of(name, tools=(Tool("somebody"),)), text, cuts)
    assert (answer.encode(), thinking, calls) == (text.encode(), "", [])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "nobody", "arguments": {}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "now", "arguments": [1]}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "now", "arguments": {{\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "now", "argum'),
        ("hermes", '<tool_call>{"arguments": {"a": 1}}</tool_call>'),
        ("mistral", '[TOOL_CALLS][{"name": "now", "arguments": {"a": NaN}}]'),
        ("llama", '{"answer": 42}'),
        ("llama", "<|python_tag|>import os"),
        ("mistral", "[TOOL_CALLS] []"),
        ("args", "[TOOL_CALLS]now[ARGS] none"),
        ("args", "[TOOL_CALLS]" + "n" * 2000),
        ("xml", "<tool_call>\n<function=now>\n<parameter=a>\n1\n</function>\n</tool_call>"),
        ("gemma", "<|tool_call>call:now{a:{b:}}<tool_call|>"),
        ("gemma", "<|tool_call>call:now" + "{a:" * 99 + "}" * 99 + "<tool_call|>"),
        ("harmony", "<|channel|>commentary to=functions.nobody <|constrain|>json<|message|>{}"),
        ("harmony", "<|channel|>commentary to=functions.now <|constrain|>json<|message|>now!"),
    ],
)
def test_what_cannot_be_read_is_text(name, text):
    assert split(reply_of(name), text) == (text, "", [])


@pytest.mark.parametrize(
    ("text", "answer", "arguments"),
    [
        ('<tool_call>{"name": "now", "arguments": {"a": 1}</tool_call>', "", '{"a": 1}'),
        ('<tool_call>{"name": "now", "arguments": {"a": NaN}}</tool_call>', "", '{"a": NaN}'),
        ('<tool_call>{"name": "now", "arguments": {"a": <x>}}', "<x>}}", '{"a": '),
    ],
)
def test_a_call_whose_arguments_have_begun_stands_whatever_becomes_of_it(text, answer, arguments):
    for cuts in ([], [*range(len(text))], [*range(0, len(text), 3)]):
        said, _, (call,) = split(reply_of("hermes"), text, cuts)
        assert (said, call.name, call.arguments) == (answer, "now", arguments)


def test_arguments_that_are_too_deep_go_no_further():
    text = '<tool_call>{"name": "now", "arguments": {"a": ' + "[" * 99
    said, _, (call,) = split(reply_of("hermes"), text, [*range(len(text))])
    assert call.arguments == '{"a": ' + "[" * (DEEPEST - 2)
    assert '{"a": ' + said == call.arguments.replace("[", "") + "[" * (99 - DEEPEST + 2)


@pytest.mark.parametrize("arguments", ["{}", "null", '""', '"{}"', '"{ }"'])
def test_no_arguments_are_an_empty_object(arguments):
    text = f'<tool_call>{{"name": "now", "arguments": {arguments}}}</tool_call>'
    assert found(split(reply_of("hermes"), text)[2]) == [NOW]


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_left_of_a_call_that_had_to_be_made_is_no_text(name):
    text, _, _, expected = WRITTEN[name]
    format_ = family(name)
    text = text[min(text.find(mark) for mark in (*format_.opens, *format_.first) if mark in text) :]
    for end in range(len(text)):
        calls = Splitter(format_, kinds_of(TOOLS), forced=True)
        answer, _, made = split(Reply(calls=calls), text[:end], [*range(end)])
        assert answer == ""
        assert [call.name for call in made] == [name for name, _ in expected[: len(made)]]
        assert found(made[:-1]) == expected[: len(made) - 1] or not made


def test_what_is_left_of_the_mark_behind_a_call_is_no_text():
    for end in range(HERMES.index("\n</tool_call>"), HERMES.index("</tool_call>") + 12):
        answer, _, calls = split(reply_of("hermes"), HERMES[:end], [*range(end)])
        assert (answer, found(calls)) == ("", [BONN])


def test_after_what_is_no_call_calls_are_found_again():
    text = '<tool_call>oh</tool_call> <tool_call>{"name": "now"}</tool_call> done'
    answer, _, calls = split(reply_of("hermes"), text)
    assert (answer, found(calls)) == ("<tool_call>oh</tool_call> done", [NOW])


HOSTILE = [
    ("hermes", '<tool_call>{"'),
    ("hermes", "\n"),
    ("hermes", "<"),
    ("hermes", "\n```\n{"),
    ("hermes", "```json\n"),
    ("hermes", "[ "),
    ("hermes", '```\n{"name": "now", "arguments": {'),
    ("llama", "{"),
    ("mistral", "[TOOL_CALLS],"),
    ("args", "[TOOL_CALLS]x[ARGS]{["),
    ("xml", "<tool_call><function=x><parameter=a>"),
    ("gemma", '<|tool_call>call:x{a:<|"|>'),
    ("harmony", "<|end|><|channel|>commentary to="),
]


@pytest.mark.parametrize(("name", "unit"), HOSTILE)
def test_a_hostile_reply_costs_no_more_than_its_length(name, unit):
    def cost(n):
        return calls_of(lambda: split(reply_of(name), (unit * n)[:n], [*range(0, n, 4)]))

    assert cost(4_000) < 2.5 * cost(2_000)


@pytest.mark.soak
@pytest.mark.parametrize(("name", "unit"), HOSTILE)
def test_a_long_hostile_reply_takes_seconds(name, unit):
    text = (unit * 100_000)[:100_000]
    began = time.perf_counter()
    split(reply_of(name), text, [*range(0, len(text), 4)])
    assert time.perf_counter() - began < 5


def test_a_call_that_is_too_long_goes_no_further():
    text = '<tool_call>{"name": "now", "arguments": {"a": "' + "x" * LONGEST_CALL + '"}}</tool_call>'
    answer, _, (call,) = split(reply_of("hermes"), text, [*range(0, len(text), 1000)])
    assert LONGEST_CALL - 100 < len(call.arguments) < LONGEST_CALL + 2000
    assert len(answer) < 2000
    longer = text.replace("<tool_call>", "[TOOL_CALLS]")
    answer, _, calls = split(reply_of("mistral"), longer, [*range(0, len(longer), 1000)])
    assert (answer == longer, calls) == (True, [])


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    ),
    st.text(max_size=5),
)
def test_a_json_text_ends_where_its_brackets_do(value, behind):
    text = json.dumps({"a": value}, ensure_ascii=False)
    scan = JsonScan()
    assert next(at for at, sign in enumerate(text + behind) if scan.feed(sign) is not None) == len(text) - 1
    assert JsonScan().feed(text + behind) == len(text)


def test_a_body_is_no_deeper_than_can_be_worked_with():
    assert JsonScan().feed("[" * DEEPEST + "]" * DEEPEST) == 2 * DEEPEST
    with pytest.raises(ValueError, match="deep"):
        JsonScan().feed("[" * (DEEPEST + 1))


# Stop strings, and replies without tools.


def test_stop_strings_end_what_is_said_and_leave_calls_alone():
    text = 'a <tool_call>{"name": "get_weather", "arguments": {"city": "STOP"}}</tool_call> b STOP c'
    reply = reply_of("hermes", stop=("STOP",))
    answer, _, calls = split(reply, text, [*range(len(text))])
    assert (answer, found(calls), reply.stopped) == ("a b ", [("get_weather", {"city": "STOP"})], True)


def test_the_beginning_of_a_stop_string_before_a_call_is_said():
    text = 'ST<tool_call>{"name": "now"}</tool_call>OP'
    assert split(reply_of("hermes", stop=("STOP",)), text)[0] == "STOP"


# Values of Qwen's tags have the type that the tool says.


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "3", "3"),
        ({}, "3", "3"),
        ({"type": "integer"}, "3", 3),
        ({"type": "integer"}, "three", "three"),
        ({"type": "boolean"}, "True", True),
        ({"type": ["null", "number"]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "object"}]}, '{"a": 1}', {"a": 1}),
        ({"type": "array"}, "[" * 99, "[" * 99),
        ({"type": "string"}, "\n two \nlines\n", "\n two \nlines\n"),
    ],
)
def test_values_between_tags_have_the_type_of_the_schema(schema, text, value):
    tool = Tool("f", "", json.dumps({"type": "object", "properties": {"k": schema}}))
    body = f"<tool_call>\n<function=f>\n<parameter=k>\n{text}\n</parameter>\n</function>\n</tool_call>"
    *_, calls = split(reply_of("xml", tools=(tool,)), body)
    assert found(calls) == [("f", {"k": value})]


# The tools of a request.


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"tools": (Tool("a b"),)}, "valid name for a tool"),
        ({"tools": (Tool("<|im_end|>"),)}, "valid name for a tool"),
        ({"tools": (Tool("f"), Tool("f"))}, "same name"),
        ({"tools": (Tool("f", "", "no"),)}, "JSON schema"),
        ({"tools": (Tool("f", "", '{"type": "string"}'),)}, "JSON schema"),
        ({"tools": (Tool("f", "", '{"a":' + "[" * 999 + "]" * 999 + "}"),)}, "JSON schema"),
        ({"tools": (Tool("f", "", '{"a": 1e999}'),)}, "JSON schema"),
        ({"tools": (Tool("f", "", '{"properties": [1]}'),)}, "JSON schema"),
        ({"tools": tuple(Tool(f"f{n}") for n in range(MOST_TOOLS + 1))}, "exceed the limit"),
        ({"tools": (Tool("f", "x" * MOST_CHARACTERS),)}, "exceed the limit"),
        ({"tool_choice": "required"}, "no tools were sent"),
        ({"tools": (Tool("f"),), "tool_choice": "required", "tool": "g"}, "not one of the tools"),
    ],
)
def test_tools_that_cannot_be_used_are_refused_in_words(options, complaint):
    with pytest.raises(SchemaError, match=complaint):
        check(ChatRequest(id="x", **options))
