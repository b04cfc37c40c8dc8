"""Grammars of required calls: what they allow and reject."""

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings

from edgechat.base.errors import SchemaError
from edgechat.engine.reply.constraints import Constraints
from edgechat.engine.reply.grammar import MOST_CALLS, calls_grammar, reply_grammar
from edgechat.engine.types import Message, Tool, ToolCall
from tests.engine.families import NOW, SOURCES, TOOLS, WEATHER, family
from tests.engine.prompt.test_prompts import template
from tests.engine.tool_calls.test_tool_calls import ARGUMENTS, VALUES
from tests.engine.tool_calls.test_tool_calls_engine import CONTROL
from tests.properties import examples
from tests.scripted.backend import ScriptedVocabulary

END = 257
CALL = ToolCall("abcDEF123", "get_weather", '{"city": "Bonn", "days": 3}')


class Family:
    """The constraints of a family, over a vocabulary of bytes that has its marks as tokens where it can."""

    def __init__(self, name, control):
        self.name = name
        self.words = ScriptedVocabulary(control)
        self.all = Constraints(self.words)

    def follows(self, text, tools=TOOLS, tool=None, **options):
        """Return whether a text is a complete answer that calls one of these tools."""
        body = calls_grammar(family(self.name), tools, self.words, tool=tool, **options)
        constraint = self.all.of(reply_grammar(body, self.words, None, thinking=False)).result()
        tokens = self.words.script(text)
        return constraint.allows([], tokens) == len(tokens) and bool(constraint.mask(tokens)[END])


@pytest.fixture(scope="module", params=[*SOURCES, *(f"{name} in marks" for name in CONTROL)])
def forced(request):
    name, _, marks = request.param.partition(" in ")
    made = Family(name, CONTROL[name] if marks else ())
    yield made
    made.all.close()


def written(name, *calls):
    """Return what the family's template writes of calls, as models learn it."""
    source = template(SOURCES[name])
    before = source.render([Message("user", "a")], tools=TOOLS).removesuffix("<think>\n")
    chat = [Message("user", "a"), Message("assistant", "", calls=calls)]
    text = source.render(chat, tools=TOOLS, generation_prompt=False)[
        len(before.removesuffix("<|start|>assistant")) :
    ]
    if name == "harmony":  # of two ways to write it the one that models choose
        header, rest = text.removeprefix("<|start|>assistant ").split("<|channel|>commentary json<|message|>")
        text = f"<|channel|>commentary {header} <|constrain|>json<|message|>{rest}"
    for end in ("<|im_end|>\n", "<|eot_id|>", "</s>", "<|call|>"):
        text = text.removesuffix(end)
    return text.replace(', "id": "abcDEF123"}', "}")


@pytest.mark.slow
@given(arguments=ARGUMENTS)
@settings(
    max_examples=examples(5), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_calls_as_templates_render_them_are_let_through(forced, arguments):
    # Which texts JSON may hold is llguidance's to say; it leaves DEL out.
    arguments["city"] = re.sub(r"[<\r\x7f]", "", str(arguments["city"]))
    in_order = {key: arguments[key] for key in VALUES if key in arguments}
    text = written(
        forced.name, ToolCall("abcDEF123", "get_weather", json.dumps(in_order, ensure_ascii=False))
    )
    assert forced.follows(text)
    assert forced.follows(text, tool="get_weather")
    assert not forced.follows(text, tool="now")
    assert not forced.follows(text[:-1])
    assert not forced.follows("Well, " + text)


@pytest.mark.parametrize(
    "arguments",
    [
        {"days": 3},
        {"city": "Bonn", "days": "three"},
        {"city": "Bonn", "unit": "K"},
        {"city": "Bonn", "hours": 3},
        {"city": "Bonn", "more": {}},
        {"city": "Bonn", "other": 1},
        {},
    ],
)
def test_arguments_follow_the_schema(forced, arguments):
    call = ToolCall("abcDEF123", "get_weather", json.dumps(arguments))
    assert not forced.follows(written(forced.name, call))


def test_only_the_tools_that_there_are_are_called(forced):
    assert forced.follows(written(forced.name, ToolCall("abcDEF123", "now", "{}")))
    assert not forced.follows(written(forced.name, ToolCall("abcDEF123", "nobody", "{}")))
    assert not forced.follows(written(forced.name, ToolCall("abcDEF123", "now", "{}")), tools=(WEATHER,))


def test_several_calls_are_let_through_where_the_family_has_a_way_for_that(forced):
    if forced.name in ("llama", "harmony"):
        return
    now = ToolCall("abcDEF123", "now", "{}")
    text = written(forced.name, CALL, now)
    assert forced.follows(text)
    assert not forced.follows(text, tool="now")
    assert forced.follows(written(forced.name, *[now] * MOST_CALLS))
    assert not forced.follows(written(forced.name, *[now] * (MOST_CALLS + 1)))
    assert not forced.follows(text, most_calls=1)
    assert forced.follows(text, most_calls=2)
    assert not forced.follows(written(forced.name, now, now, now), most_calls=2)


def test_an_answer_may_be_something_else_where_nothing_has_to_be_called(forced):
    assert forced.follows('"yes"', alternative='"\\"yes\\""')
    assert not forced.follows('"yes"')
    assert forced.follows(written(forced.name, CALL), alternative='"\\"yes\\""')


def test_where_it_is_free_any_text_may_be_said_but_a_call_follows_its_schema(forced):
    call = written(forced.name, CALL)
    for text in ("", "It rains.", "{", 'As JSON: {"name": 1} <tool', "a < b\n\n[1]"):
        assert forced.follows(text, optional=True), text
    assert forced.follows(call, optional=True)
    for arguments in ('{"days": 3}', '{"city": "Bonn", "days": "three"}', '{"city": "Bonn", "other": 1}'):
        wrong = written(forced.name, ToolCall("abcDEF123", "get_weather", arguments))
        assert not forced.follows(wrong, optional=True), wrong
        assert not forced.follows("I look. " + wrong, optional=True) or forced.name in ("llama", "harmony")
    if forced.name not in ("llama", "harmony"):
        assert forced.follows("I look.\n" + call, optional=True)
        two = written(forced.name, CALL, ToolCall("abcDEF123", "now", "{}"))
        assert forced.follows(two, optional=True)
        assert not forced.follows(two, optional=True, most_calls=1)


def test_what_is_said_before_a_call_is_a_message_of_its_own_for_gpt_oss():
    made = Family("harmony", CONTROL["harmony"])
    before = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    assert made.follows(before + written("harmony", CALL), optional=True)
    assert made.follows(before + "<|channel|>final<|message|>Rain.", optional=True)
    assert not made.follows(before + written("harmony", CALL).replace("Bonn", '", "x": "'), optional=True)
    assert not made.follows(" to=functions.now", optional=True)
    made.all.close()


def test_references_in_a_schema_are_followed(forced):
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/x"}},
        "required": ["a"],
        "$defs": {"x": {"enum": [1]}},
    }
    tool = Tool("f", "", json.dumps(schema))
    assert forced.follows(written(forced.name, ToolCall("abcDEF123", "f", '{"a": 1}')), tools=(tool, NOW))


def test_a_keyword_that_cannot_be_kept_lets_all_else_be(forced):
    tags = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "not": {"const": []}}
    tool = Tool("f", "", json.dumps({"type": "object", "properties": {"tags": tags}, "required": ["tags"]}))
    for arguments, stands in (
        ('{"tags": [1, 1]}', True),
        ('{"tags": [1, 3]}', forced.name.startswith("gemma")),
    ):
        call = ToolCall("abcDEF123", "f", arguments)
        assert forced.follows(written(forced.name, call), tools=(tool, WEATHER)) == stands
    assert forced.follows(written(forced.name, CALL), tools=(tool, WEATHER))


@pytest.mark.parametrize("name", ["hermes", "xml"])
def test_a_schema_that_cannot_be_followed_names_its_tool(name):
    wrong = Tool(
        "odd_one", "", '{"type": "object", "properties": {"a": {"type": "integer", "minimum": "x"}}}'
    )
    made = Family(name, ())
    with pytest.raises(SchemaError, match="Calls to the tool odd_one cannot be made to follow its schema"):
        made.follows("", tools=(WEATHER, wrong, NOW))
    made.all.close()


@pytest.mark.parametrize("name", ["xml", "gemma"])
def test_schemas_made_of_others_are_refused_where_the_notation_is_not_json(name):
    tool = Tool("f", "", '{"type": "object", "anyOf": [{"required": ["a"]}]}')
    with pytest.raises(SchemaError, match="anyOf at the top level"):
        calls_grammar(family(name), [tool], ScriptedVocabulary())


@pytest.mark.parametrize("name", ["xml", "gemma"])
def test_names_of_arguments_that_break_the_notation_are_refused(name):
    tool = Tool("f", "", '{"type": "object", "properties": {"a>\\n": {"type": "string"}}}')
    with pytest.raises(SchemaError, match="argument"):
        calls_grammar(family(name), [tool], ScriptedVocabulary())
